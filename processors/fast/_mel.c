/* Mel levels of spectra, to the bits that torch's operations give.
 *
 * A magnitude is what Sleef's hypot gives (torch's own for planes and complex numbers), squared; a
 * mel bin is the sum of a filter's products in the order of a matrix product whose inner dimension
 * is cut into blocks: within a block one fused multiply-add after another, then block after block.
 * A filter is nought almost everywhere, and adding nought changes no sum: only the rest is computed.
 * Which blocks a library takes is for the caller to find out.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma")))
#define LANES 8
#define TILE (2 * LANES) /* frames that are computed together */
#define MAX_BINS 2048

typedef __m256 V;

typedef struct {
    V high, low;
} Pair; /* a sum of two, of which the second is what the first lost by rounding */

/* Sleef's arithmetic of pairs, by its names (dfdiv, dfsqu, ...), with fused multiply-add. */

TARGET static inline V splat(float value) { return _mm256_set1_ps(value); }

TARGET static inline Pair divide(V n, V d) {
    const V t = _mm256_div_ps(splat(1), d), s = _mm256_mul_ps(n, t);
    const V u = _mm256_fmsub_ps(t, n, s);
    const V v = _mm256_fnmadd_ps(d, t, splat(1));
    return (Pair){s, _mm256_fmadd_ps(s, v, u)};
}

TARGET static inline Pair square(Pair x) {
    const V s = _mm256_mul_ps(x.high, x.high);
    const V twice = _mm256_add_ps(x.high, x.high);
    return (Pair){s, _mm256_fmadd_ps(twice, x.low, _mm256_fmsub_ps(x.high, x.high, s))};
}

/* What is lost of x + y where that is rounded to s. */
TARGET static inline V lost(V x, V y, V s) {
    const V v = _mm256_sub_ps(s, x);
    return _mm256_add_ps(_mm256_sub_ps(x, _mm256_sub_ps(s, v)), _mm256_sub_ps(y, v));
}

TARGET static inline Pair add_single(Pair x, V y) {
    const V s = _mm256_add_ps(x.high, y);
    return (Pair){s, _mm256_add_ps(lost(x.high, y, s), x.low)};
}

TARGET static inline Pair add(Pair x, Pair y) {
    const V s = _mm256_add_ps(x.high, y.high);
    return (Pair){s, _mm256_add_ps(lost(x.high, y.high, s), _mm256_add_ps(x.low, y.low))};
}

TARGET static inline Pair multiply(Pair x, Pair y) {
    const V s = _mm256_mul_ps(x.high, y.high);
    const V rest = _mm256_fmadd_ps(x.low, y.high, _mm256_fmsub_ps(x.high, y.high, s));
    return (Pair){s, _mm256_fmadd_ps(x.high, y.low, rest)};
}

TARGET static inline Pair square_root(Pair d) {
    const V t = _mm256_sqrt_ps(_mm256_add_ps(d.high, d.low));
    const V s = _mm256_mul_ps(t, t);
    const V r = _mm256_div_ps(splat(1), t);
    const Pair reciprocal = {r, _mm256_mul_ps(r, _mm256_fnmadd_ps(t, r, splat(1)))};
    const Pair twice = multiply(add(d, (Pair){s, _mm256_fmsub_ps(t, t, s)}), reciprocal);
    return (Pair){_mm256_mul_ps(twice.high, splat(0.5f)), _mm256_mul_ps(twice.low, splat(0.5f))};
}

/* Sleef_hypotf_u05, of finite numbers alone. */
TARGET static inline V hypotenuse(V x, V y) {
    const V sign = splat(-0.0f);
    x = _mm256_andnot_ps(sign, x);
    y = _mm256_andnot_ps(sign, y);
    const V least = _mm256_min_ps(x, y), most = _mm256_max_ps(x, y);
    const V is_tiny = _mm256_cmp_ps(most, splat(1.17549435e-38f), _CMP_LT_OQ);
    const V scale = _mm256_blendv_ps(splat(1), splat(16777216), is_tiny);
    const Pair ratio = divide(_mm256_mul_ps(least, scale), _mm256_mul_ps(most, scale));
    const Pair root = square_root(add_single(square(ratio), splat(1)));
    const V s = _mm256_mul_ps(root.high, most);
    const V low = _mm256_fmadd_ps(root.low, most, _mm256_fmsub_ps(root.high, most, s));
    const V is_axis = _mm256_cmp_ps(least, _mm256_setzero_ps(), _CMP_EQ_OQ);
    return _mm256_blendv_ps(_mm256_add_ps(s, low), most, is_axis);
}

/* Nought of a finite number, and no number of any other; what was odd before stays that. */
TARGET static inline V oddness(V before, V x) {
    return _mm256_add_ps(before, _mm256_sub_ps(x, x));
}

/* The squared magnitudes of complex numbers that lie beside each other. */
TARGET static inline V power(const float *complex, V *odd) {
    const V a = _mm256_loadu_ps(complex), b = _mm256_loadu_ps(complex + LANES);
    /* Real parts beside each other, and imaginary ones, in one order that is put right once. */
    const V real = _mm256_shuffle_ps(a, b, 0x88), imaginary = _mm256_shuffle_ps(a, b, 0xdd);
    const V h = hypotenuse(real, imaginary), squared = _mm256_mul_ps(h, h);
    *odd = oddness(oddness(oddness(*odd, real), imaginary), squared);
    const __m256d ordered = _mm256_castps_pd(squared);
    return _mm256_castpd_ps(_mm256_permute4x64_pd(ordered, 0xd8));
}

TARGET static inline void transpose(V rows[LANES]) {
    V a[LANES], b[LANES];
    for (int i = 0; i < LANES; i += 2) {
        a[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4) {
        b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    for (int i = 0; i < LANES / 2; i++) {
        rows[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        rows[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}

/* The powers of a tile's frames, a row for each bin. Returns whether all is finite. */
TARGET static int fill_tile(const float *spectrum, Py_ssize_t num_bins, float *tile) {
    V odd = _mm256_setzero_ps();
    for (int half = 0; half < TILE; half += LANES)
        for (Py_ssize_t next = 0, bin; next < num_bins; next += LANES) {
            bin = next + LANES > num_bins ? num_bins - LANES : next; /* the last ones twice */
            V rows[LANES];
            for (int i = 0; i < LANES; i++)
                rows[i] = power(spectrum + 2 * ((half + i) * num_bins + bin), &odd);
            transpose(rows);
            for (int i = 0; i < LANES; i++)
                _mm256_store_ps(tile + (bin + i) * TILE + half, rows[i]);
        }
    return _mm256_movemask_ps(_mm256_cmp_ps(odd, odd, _CMP_UNORD_Q)) == 0;
}

typedef struct {
    Py_ssize_t first, stop; /* bins that a filter does not multiply by nought */
} Band;

TARGET static void sum_band(const float *tile, const float *filter, Band band, Py_ssize_t block,
                            float *out) {
    V left = _mm256_setzero_ps(), right = left;
    for (Py_ssize_t bin = band.first; bin < band.stop;) {
        const Py_ssize_t block_end = (bin / block + 1) * block;
        const Py_ssize_t end = block_end < band.stop ? block_end : band.stop;
        V a = _mm256_setzero_ps(), b = a;
        for (; bin < end; bin++) {
            const V weight = _mm256_broadcast_ss(filter + bin);
            a = _mm256_fmadd_ps(weight, _mm256_load_ps(tile + bin * TILE), a);
            b = _mm256_fmadd_ps(weight, _mm256_load_ps(tile + bin * TILE + LANES), b);
        }
        left = _mm256_add_ps(left, a);
        right = _mm256_add_ps(right, b);
    }
    _mm256_storeu_ps(out, left);
    _mm256_storeu_ps(out + LANES, right);
}

typedef struct {
    const float *spectrum, *filters;
    float *out;
    Py_ssize_t num_frames, num_bins, num_mels, block;
} Task;

static Band find_band(const float *filter, Py_ssize_t num_bins) {
    Band band = {0, num_bins};
    while (band.stop > 0 && filter[band.stop - 1] == 0)
        band.stop--;
    while (band.first < band.stop && filter[band.first] == 0)
        band.first++;
    return band;
}

/* Returns whether all powers were finite: nought times others is not nought. */
static int compute(const Task *task, float *tile, Band *bands) {
    for (Py_ssize_t mel = 0; mel < task->num_mels; mel++)
        bands[mel] = find_band(task->filters + mel * task->num_bins, task->num_bins);
    for (Py_ssize_t next = 0; next < task->num_frames; next += TILE) {
        const Py_ssize_t is_last = next + TILE > task->num_frames;
        const Py_ssize_t frame = is_last ? task->num_frames - TILE : next;
        if (!fill_tile(task->spectrum + 2 * frame * task->num_bins, task->num_bins, tile))
            return 0;
        for (Py_ssize_t mel = 0; mel < task->num_mels; mel++)
            sum_band(tile, task->filters + mel * task->num_bins, bands[mel], task->block,
                     task->out + mel * task->num_frames + frame);
    }
    return 1;
}

static const char *check(const Py_buffer *spectrum, const Py_buffer *filters, const Py_buffer *out,
                         Py_ssize_t block) {
    if (spectrum->ndim != 3 || filters->ndim != 2 || out->ndim != 2)
        return "spectrum, filters and out have 3, 2 and 2 dimensions";
    if (spectrum->itemsize != 4 || filters->itemsize != 4 || out->itemsize != 4)
        return "elements are float32";
    const Py_ssize_t num_bins = spectrum->shape[1];
    if (spectrum->shape[0] < TILE || num_bins < LANES || num_bins > MAX_BINS || block < 1)
        return "too few frames or bins, or too many bins, or no block";
    if (spectrum->shape[2] != 2 || filters->shape[1] != num_bins)
        return "bins do not fit";
    if (out->shape[0] != filters->shape[0] || out->shape[1] != spectrum->shape[0])
        return "out does not fit";
    return NULL;
}

PyDoc_STRVAR(mel_doc,
             "mel(spectrum, filters, out, block, /)\n--\n\n"
             "Write mel levels of complex spectra (N, bins, 2) by filters (mels, bins) into\n"
             "(mels, N); all float32. Returns whether all powers are finite; else out is not.");

static PyObject *mel(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *objects[3], *result = NULL;
    Py_buffer views[3];
    Py_ssize_t block;
    int num_held = 0;
    if (!PyArg_ParseTuple(args, "OOOn:mel", &objects[0], &objects[1], &objects[2], &block))
        return NULL;
    for (; num_held < 3; num_held++) {
        const int flags = PyBUF_C_CONTIGUOUS | (num_held == 2 ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(objects[num_held], &views[num_held], flags) < 0)
            goto done;
    }
    const char *problem = check(&views[0], &views[1], &views[2], block);
    if (problem != NULL) {
        PyErr_SetString(PyExc_ValueError, problem);
        goto done;
    }
    const Task task = {
        .spectrum = views[0].buf,
        .filters = views[1].buf,
        .out = views[2].buf,
        .num_frames = views[0].shape[0],
        .num_bins = views[0].shape[1],
        .num_mels = views[1].shape[0],
        .block = block,
    };
    const size_t tile_bytes = (size_t)task.num_bins * TILE * sizeof(float);
    float *tile = _mm_malloc(tile_bytes + (size_t)task.num_mels * sizeof(Band), 64);
    if (tile == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    int is_finite;
    Py_BEGIN_ALLOW_THREADS
    is_finite = compute(&task, tile, (Band *)((char *)tile + tile_bytes));
    Py_END_ALLOW_THREADS
    _mm_free(tile);
    result = PyBool_FromLong(is_finite);
done:
    while (num_held > 0)
        PyBuffer_Release(&views[--num_held]);
    return result;
}

static PyMethodDef methods[] = {
    {"mel", mel, METH_VARARGS, mel_doc},
    {NULL, NULL, 0, NULL},
};

static int refuse_old_processors(PyObject *module) {
    (void)module;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return 0;
    PyErr_SetString(PyExc_ImportError, "mel levels by our own pass need AVX2 and FMA");
    return -1;
}
#else
static PyMethodDef methods[] = {{NULL, NULL, 0, NULL}};

static int refuse_old_processors(PyObject *module) {
    (void)module;
    PyErr_SetString(PyExc_ImportError, "mel levels by our own pass need AVX2 and FMA");
    return -1;
}
#endif

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, refuse_old_processors},
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_mel",
    .m_doc = "Mel levels of spectra, to the bits that torch gives.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__mel(void) { return PyModuleDef_Init(&module); }
