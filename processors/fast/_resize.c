/* Antialiased bilinear and bicubic resizing of uint8 RGB pixels, to the bits that torch gives.
 *
 * Rows are resized horizontally into a ring of as many as the vertical filter spans, and from there
 * into the output: no picture of the width of one and the height of the other exists. Weights are
 * int16, made of doubles as torch makes them, sums int32, rounded to uint8 after either direction.
 *
 * Mirrors: aten/src/ATen/native/cpu/UpSampleKernel.cpp, `compute_index_ranges_int16_weights`, and
 * UpSampleKernelAVXAntialias.h, `upsample_avx_bilinear_bicubic_uint8` (torch 2.14).
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "_parallel.h"

#define CHANNELS 3
#define GROUP 4              /* taps that are read together, rows that are resized together */
#define MAX_SIDE (1 << 20)   /* pixels; sums of weights and offsets stay far from overflowing */
#define BAND_PIXELS (1 << 16) /* of source and output together, below which a thread costs more */

/* Which pixels become one, and by which weights, along one direction. */
typedef struct {
    int needed;        /* whether the direction changes at all */
    int shift;         /* bits of the weights behind the point */
    Py_ssize_t count;  /* of outputs */
    Py_ssize_t width;  /* weights kept for each, a multiple of GROUP; those past its length are 0 */
    Py_ssize_t longest;
    Py_ssize_t *starts, *lengths;
    int16_t *weights;
} Filter;

typedef struct {
    const uint8_t *data;
    uint8_t *out;
    Py_ssize_t height, width;           /* of the source */
    Py_ssize_t picture_bytes, row_bytes; /* of the source */
    Py_ssize_t out_row_bytes;
    Py_ssize_t safe;  /* outputs of a row whose taps are read 16 bytes at a time within the row */
    Py_ssize_t ring, ring_row_bytes;
    uint8_t *rings;   /* one for each thread; the last row takes what nobody wants */
    Filter across, down;
} Task;

static double bilinear(double x) {
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double bicubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2.0)
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
    return 0.0;
}

static void free_filter(Filter *f) {
    PyMem_RawFree(f->starts);
    PyMem_RawFree(f->lengths);
    PyMem_RawFree(f->weights);
}

/* Returns -1 where memory is short; what was allocated is freed by `free_filter` all the same. */
static int make_filter(Filter *f, Py_ssize_t in, Py_ssize_t out, int is_bicubic) {
    double (*kernel)(double) = is_bicubic ? bicubic : bilinear;
    const double scale = (double)in / out, inverse = scale >= 1.0 ? 1.0 / scale : 1.0;
    const double radius = is_bicubic ? 2.0 : 1.0;
    const double support = scale >= 1.0 ? radius * scale : radius;
    const Py_ssize_t most = (Py_ssize_t)ceil(support) * 2 + 1;
    *f = (Filter){.needed = in != out, .count = out};
    if (!f->needed)
        return 0;
    f->width = (most + GROUP - 1) / GROUP * GROUP;
    f->starts = PyMem_RawMalloc(out * sizeof *f->starts);
    f->lengths = PyMem_RawMalloc(out * sizeof *f->lengths);
    f->weights = PyMem_RawCalloc(out * f->width, sizeof *f->weights);
    double *exact = PyMem_RawMalloc(out * most * sizeof *exact), highest = 0.0;
    if (!f->starts || !f->lengths || !f->weights || !exact) {
        PyMem_RawFree(exact);
        return -1;
    }
    for (Py_ssize_t i = 0; i < out; i++) {
        const double center = scale * (i + 0.5);
        Py_ssize_t start = (Py_ssize_t)(center - support + 0.5);
        start = start < 0 ? 0 : start;
        Py_ssize_t stop = (Py_ssize_t)(center + support + 0.5);
        Py_ssize_t length = (stop < in ? stop : in) - start;
        length = length < 0 ? 0 : length > most ? most : length;
        double total = 0.0, *weights = exact + i * most;
        for (Py_ssize_t j = 0; j < length; j++)
            total += weights[j] = kernel((j + start - center + 0.5) * inverse);
        for (Py_ssize_t j = 0; j < length; j++) {
            if (total != 0.0)
                weights[j] /= total;
            highest = weights[j] > highest ? weights[j] : highest;
        }
        f->starts[i] = start;
        f->lengths[i] = length;
        f->longest = length > f->longest ? length : f->longest;
    }
    while (f->shift < 22 && (int)(0.5 + highest * (1 << (f->shift + 1))) < 1 << 15)
        f->shift++;
    for (Py_ssize_t i = 0; i < out; i++)
        for (Py_ssize_t j = 0; j < f->lengths[i]; j++) {
            const double weight = exact[i * most + j];
            f->weights[i * f->width + j] =
                (int16_t)((weight < 0 ? -0.5 : 0.5) + weight * (1 << f->shift));
        }
    PyMem_RawFree(exact);
    return 0;
}

static inline uint8_t rounded(int32_t sum, int shift) {
    sum >>= shift;
    return sum < 0 ? 0 : sum > 255 ? 255 : (uint8_t)sum;
}

static void across_plain(const Task *t, const uint8_t *row, uint8_t *out, Py_ssize_t from) {
    const Filter *f = &t->across;
    for (Py_ssize_t x = from; x < f->count; x++)
        for (int c = 0; c < CHANNELS; c++) {
            const uint8_t *p = row + f->starts[x] * CHANNELS + c;
            int32_t sum = 1 << (f->shift - 1);
            for (Py_ssize_t j = 0; j < f->lengths[x]; j++, p += CHANNELS)
                sum += *p * f->weights[x * f->width + j];
            out[x * CHANNELS + c] = rounded(sum, f->shift);
        }
}

#define AVX2 __attribute__((target("avx2")))

AVX2 static inline __m256i two_rows(const uint8_t *low, const uint8_t *high) {
    const __m128i l = _mm_loadu_si128((const __m128i *)low);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(l),
                                   _mm_loadu_si128((const __m128i *)high), 1);
}

AVX2 static inline __m256i pair(const int16_t *weights) {
    int32_t both;
    memcpy(&both, weights, sizeof both);
    return _mm256_set1_epi32(both);
}

static inline void put(uint8_t *target, int value) { memcpy(target, &value, sizeof value); }

/* Four rows together, two to a register: a pixel pair's channels lie side by side as int16. */
AVX2 static void across_rows(const Task *t, const uint8_t *const rows[GROUP],
                             uint8_t *const outs[GROUP]) {
    const Filter *f = &t->across;
    const __m256i first = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
    const __m256i second = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
    const __m256i half = _mm256_set1_epi32(1 << (f->shift - 1));
    const __m128i shift = _mm_cvtsi32_si128(f->shift);
    for (Py_ssize_t x = 0; x < t->safe; x++) {
        const int16_t *weights = f->weights + x * f->width;
        const Py_ssize_t at = f->starts[x] * CHANNELS, length = f->lengths[x];
        __m256i a = half, b = half;
        for (Py_ssize_t j = 0; j < length; j += GROUP) {
            const Py_ssize_t o = at + j * CHANNELS;
            const __m256i p = two_rows(rows[0] + o, rows[1] + o);
            const __m256i q = two_rows(rows[2] + o, rows[3] + o);
            const __m256i w = pair(weights + j), v = pair(weights + j + 2);
            a = _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_shuffle_epi8(p, first), w));
            b = _mm256_add_epi32(b, _mm256_madd_epi16(_mm256_shuffle_epi8(q, first), w));
            a = _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_shuffle_epi8(p, second), v));
            b = _mm256_add_epi32(b, _mm256_madd_epi16(_mm256_shuffle_epi8(q, second), v));
        }
        const __m256i words =
            _mm256_packs_epi32(_mm256_sra_epi32(a, shift), _mm256_sra_epi32(b, shift));
        const __m256i bytes = _mm256_packus_epi16(words, words);
        const __m128i even = _mm256_castsi256_si128(bytes);
        const __m128i odd = _mm256_extracti128_si256(bytes, 1);
        /* Four bytes each: the fourth is the next pixel's, which is written after this one. */
        put(outs[0] + x * CHANNELS, _mm_cvtsi128_si32(even));
        put(outs[1] + x * CHANNELS, _mm_cvtsi128_si32(odd));
        put(outs[2] + x * CHANNELS, _mm_extract_epi32(even, 1));
        put(outs[3] + x * CHANNELS, _mm_extract_epi32(odd, 1));
    }
    for (int i = 0; i < GROUP; i++)
        across_plain(t, rows[i], outs[i], t->safe);
}

AVX2 static inline void down_32(const uint8_t *const *rows, const int16_t *weights, Py_ssize_t pairs,
                                __m256i half, __m128i shift, uint8_t *out, Py_ssize_t at) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i s0 = half, s1 = half, s2 = half, s3 = half;
    for (Py_ssize_t j = 0; j < pairs; j++) {
        const __m256i a = _mm256_loadu_si256((const __m256i *)(rows[2 * j] + at));
        const __m256i b = _mm256_loadu_si256((const __m256i *)(rows[2 * j + 1] + at));
        const __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
        const __m256i w = pair(weights + 2 * j);
        s0 = _mm256_add_epi32(s0, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), w));
        s1 = _mm256_add_epi32(s1, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), w));
        s2 = _mm256_add_epi32(s2, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), w));
        s3 = _mm256_add_epi32(s3, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), w));
    }
    const __m256i low = _mm256_packs_epi32(_mm256_sra_epi32(s0, shift), _mm256_sra_epi32(s1, shift));
    const __m256i high =
        _mm256_packs_epi32(_mm256_sra_epi32(s2, shift), _mm256_sra_epi32(s3, shift));
    _mm256_storeu_si256((__m256i *)(out + at), _mm256_packus_epi16(low, high));
}

/* Rows of one width into one. `rows` holds an even number of them; where the filter's length is odd
 * the last one stands twice, and its second weight is 0. */
AVX2 static void down_row(const Filter *f, Py_ssize_t y, const uint8_t *const *rows,
                          Py_ssize_t nbytes, uint8_t *out) {
    const int16_t *weights = f->weights + y * f->width;
    const Py_ssize_t pairs = (f->lengths[y] + 1) / 2;
    const __m256i half = _mm256_set1_epi32(1 << (f->shift - 1));
    const __m128i shift = _mm_cvtsi32_si128(f->shift);
    Py_ssize_t at = 0;
    for (; at + 32 <= nbytes; at += 32)
        down_32(rows, weights, pairs, half, shift, out, at);
    if (at < nbytes && nbytes >= 32) {
        down_32(rows, weights, pairs, half, shift, out, nbytes - 32);
        return;
    }
    for (; at < nbytes; at++) {
        int32_t sum = 1 << (f->shift - 1);
        for (Py_ssize_t j = 0; j < f->lengths[y]; j++)
            sum += rows[j][at] * weights[j];
        out[at] = rounded(sum, f->shift);
    }
}

/* Resize `count` rows from `row` on, at most GROUP, horizontally: to where `outs` says. */
static void across(const Task *t, const uint8_t *picture, Py_ssize_t row, Py_ssize_t count,
                   uint8_t *outs[GROUP], uint8_t *spare) {
    const uint8_t *rows[GROUP];
    for (Py_ssize_t i = 0; i < GROUP; i++) {
        rows[i] = picture + (row + (i < count ? i : count - 1)) * t->row_bytes;
        outs[i] = i < count ? outs[i] : spare;
    }
    across_rows(t, rows, outs);
}

/* Output rows [from, to) of one picture. */
static void resize_rows(const Task *t, const uint8_t *picture, uint8_t *out, Py_ssize_t from,
                        Py_ssize_t to, uint8_t *ring, const uint8_t **rows) {
    uint8_t *spare = ring + t->ring * t->ring_row_bytes, *outs[GROUP];
    if (!t->down.needed) {
        for (Py_ssize_t y = from; y < to; y += GROUP) {
            const Py_ssize_t count = to - y < GROUP ? to - y : GROUP;
            for (Py_ssize_t i = 0; i < count; i++)
                outs[i] = out + (y + i) * t->out_row_bytes;
            if (t->across.needed)
                across(t, picture, y, count, outs, spare);
            else
                for (Py_ssize_t i = 0; i < count; i++)
                    memcpy(outs[i], picture + (y + i) * t->row_bytes, t->out_row_bytes);
        }
        return;
    }
    Py_ssize_t made = t->down.starts[from]; /* rows of the ring below this one are there */
    for (Py_ssize_t y = from; y < to; y++) {
        const Py_ssize_t start = t->down.starts[y], length = t->down.lengths[y];
        while (t->across.needed && made < start + length) {
            const Py_ssize_t left = t->height - made, count = left < GROUP ? left : GROUP;
            for (Py_ssize_t i = 0; i < count; i++)
                outs[i] = ring + (made + i) % t->ring * t->ring_row_bytes;
            across(t, picture, made, count, outs, spare);
            made += count;
        }
        for (Py_ssize_t j = 0; j <= length; j++) {
            const Py_ssize_t row = start + (j < length ? j : length - 1);
            rows[j] = t->across.needed ? ring + row % t->ring * t->ring_row_bytes
                                       : picture + row * t->row_bytes;
        }
        down_row(&t->down, y, rows, t->out_row_bytes, out + y * t->out_row_bytes);
    }
}

/* Bytes of what a thread has to itself: its ring, a spare row, and pointers to rows. */
static Py_ssize_t scratch_bytes(const Task *t) {
    return (t->ring + 1) * t->ring_row_bytes + (t->down.longest + 1) * (Py_ssize_t)sizeof(void *);
}

/* Output rows [from, to), counted over all pictures. */
static void resize_band(const void *task, ptrdiff_t from, ptrdiff_t to, int thread) {
    const Task *t = task;
    uint8_t *ring = t->rings + thread * scratch_bytes(t);
    const uint8_t **rows = (const uint8_t **)(ring + (t->ring + 1) * t->ring_row_bytes);
    const Py_ssize_t height = t->down.count;
    for (Py_ssize_t next; from < to; from = next) {
        const Py_ssize_t picture = from / height, first = from % height;
        next = (picture + 1) * height < to ? (picture + 1) * height : to;
        resize_rows(t, t->data + picture * t->picture_bytes,
                    t->out + picture * height * t->out_row_bytes, first, next - picture * height,
                    ring, rows);
    }
}

/* Outputs whose groups of taps, read 16 bytes at a time, end within the row; never the last one,
 * since four bytes are written for each. */
static Py_ssize_t count_safe(const Filter *f, Py_ssize_t width) {
    Py_ssize_t x = 0;
    for (; x < f->count - 1; x++) {
        const Py_ssize_t groups = (f->lengths[x] + GROUP - 1) / GROUP;
        if (CHANNELS * (f->starts[x] + (groups - 1) * GROUP) + 16 > CHANNELS * width)
            break;
    }
    return x;
}

static PyObject *fail(Py_buffer *source, Py_buffer *target, PyObject *error, const char *message) {
    PyBuffer_Release(source);
    PyBuffer_Release(target);
    if (message)
        PyErr_SetString(error, message);
    else
        PyErr_NoMemory();
    return NULL;
}

PyDoc_STRVAR(resize_doc,
             "resize(pictures, out, is_bicubic, threads)\n--\n\n"
             "Resize uint8 pictures (N, H, W, 3) into (N, h, w, 3), antialiased.");

static PyObject *resize(PyObject *self, PyObject *args) {
    PyObject *pictures, *out;
    int is_bicubic;
    Py_ssize_t threads;
    Py_buffer source, target;
    if (!PyArg_ParseTuple(args, "OOpn:resize", &pictures, &out, &is_bicubic, &threads))
        return NULL;
    if (PyObject_GetBuffer(pictures, &source, PyBUF_STRIDES) < 0)
        return NULL;
    if (PyObject_GetBuffer(out, &target, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&source);
        return NULL;
    }
    if (source.itemsize != 1 || target.itemsize != 1 || source.ndim != 4 || target.ndim != 4 ||
        source.shape[3] != CHANNELS || target.shape[3] != CHANNELS || source.strides[3] != 1 ||
        source.strides[2] != CHANNELS)
        return fail(&source, &target, PyExc_ValueError,
                    "pictures are uint8 (N, height, width, 3) with adjacent pixels");
    if (source.shape[0] != target.shape[0])
        return fail(&source, &target, PyExc_ValueError, "there is one output for each picture");
    for (int i = 1; i < 3; i++)
        if (source.shape[i] < 1 || source.shape[i] > MAX_SIDE || target.shape[i] < 1 ||
            target.shape[i] > MAX_SIDE)
            return fail(&source, &target, PyExc_ValueError, "sides are 1 to 2**20 pixels");
    if (threads < 1)
        return fail(&source, &target, PyExc_ValueError, "there is at least one thread");
    Task t = {
        .data = source.buf,
        .out = target.buf,
        .height = source.shape[1],
        .width = source.shape[2],
        .picture_bytes = source.strides[0],
        .row_bytes = source.strides[1],
        .out_row_bytes = target.shape[2] * CHANNELS,
    };
    int failed = make_filter(&t.across, t.width, target.shape[2], is_bicubic) < 0 ||
                 make_filter(&t.down, t.height, target.shape[1], is_bicubic) < 0;
    if (!failed) {
        const Py_ssize_t rows = target.shape[0] * target.shape[1];
        const int used = useful_threads((source.len + target.len) / CHANNELS, BAND_PIXELS,
                                        threads < rows ? threads : rows);
        t.safe = t.across.needed ? count_safe(&t.across, t.width) : 0;
        t.ring = t.across.needed && t.down.needed ? t.down.longest + GROUP : 0;
        t.ring_row_bytes = (t.out_row_bytes + 63) / 64 * 64;
        t.rings = PyMem_RawMalloc(used * scratch_bytes(&t));
        failed = !t.rings;
        if (!failed) {
            Py_BEGIN_ALLOW_THREADS
            run_bands(resize_band, &t, rows, used);
            Py_END_ALLOW_THREADS
        }
    }
    PyMem_RawFree(t.rings);
    free_filter(&t.across);
    free_filter(&t.down);
    if (failed)
        return fail(&source, &target, NULL, NULL);
    PyBuffer_Release(&source);
    PyBuffer_Release(&target);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"resize", resize, METH_VARARGS, resize_doc},
    {NULL, NULL, 0, NULL},
};

static int refuse_old_processors(PyObject *module) {
    if (__builtin_cpu_supports("avx2"))
        return 0;
    PyErr_SetString(PyExc_ImportError, "resizing by our own pass needs AVX2");
    return -1;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, refuse_old_processors},
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_resize",
    .m_doc = "Antialiased resizing of uint8 RGB pixels, to the bits that torch gives.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__resize(void) { return PyModuleDef_Init(&module); }
