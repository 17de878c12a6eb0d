/* One pass from decoded uint8 pixels to a feature's final layout and element type.
 *
 * A table holds, for each channel and each of the 256 pixel values, the element to write: the bits
 * of a float32, bfloat16 or float16, or a uint8. Kernels therefore come in element sizes 1, 2 and 4
 * and know nothing of arithmetic. Every buffer is checked against the shapes before the interpreter
 * lock is released; nothing outside of them is read or written.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "_parallel.h"

#define CHANNELS 3
#define LEVELS 256
#define STREAM_BYTES (1 << 20) /* patch rows of larger outputs are written past the caches */
#define BAND_BYTES (1 << 18)   /* of output, below which a thread costs more than it gives */

typedef struct {
    const uint8_t *data;
    Py_ssize_t shape[4];   /* outer, height, width, channels */
    Py_ssize_t strides[4]; /* bytes */
} Pixels;

typedef struct {
    Py_ssize_t grid_height, grid_width, patch, merge, times;
    int streams; /* whether the output is too large for the caches */
} Grid;

/* What the bands of one call share. */
typedef struct {
    Pixels pixels;
    Grid grid;
    const void *table;
    void *out;
} Patching;

/* Blocks that are read together: a pixel row of them before the next one, since every row of a
 * frame lies in another page and the first-level TLB holds few. More of them where more pages are
 * read for a row of the output (frames that share it), or less is written for one. */
#define GROUP 2
#define WIDE_GROUP 4

/* Rows of a group are put together in a buffer of this size and streamed past the caches: the whole
 * feature is larger than they are, and a plain store would first read every line it overwrites. */
#define STAGE_BYTES 131072

/* Copy past the caches. What lies before the first and behind the last 16 bytes that are aligned in
 * the target is stored as usual: a feature may start anywhere that suits its elements. */
static void stream(void *restrict target, const void *restrict source, size_t nbytes) {
#ifdef __SSE2__
    uint8_t *restrict d = target;
    const uint8_t *restrict s = source;
    size_t head = -(uintptr_t)d % 16;
    if (head > nbytes)
        head = nbytes;
    memcpy(d, s, head);
    for (d += head, s += head, nbytes -= head; nbytes >= 16; d += 16, s += 16, nbytes -= 16)
        _mm_stream_si128((__m128i *)d, _mm_loadu_si128((const __m128i *)s));
    memcpy(d, s, nbytes);
#else
    memcpy(target, source, nbytes);
#endif
}

/* Make streamed stores visible before any store that follows, as plain ones are. */
static void finish_streams(void) {
#ifdef __SSE2__
    _mm_sfence();
#endif
}

/* Up to `times` frames (T, H, W, 3) into rows of 3 * times * patch * patch elements; rows run over
 * merge x merge blocks of patches. Each frame takes a slot of each channel, the last one all that
 * are left. A band is a range of blocks. The body is compiled for the usual patch sizes as
 * constants, and once for any other. */
#define DEFINE_PATCHIFY(NAME, TYPE)                                                                \
    static inline __attribute__((always_inline)) void NAME##_body(                                 \
        const Pixels *px, const Grid *g, const Py_ssize_t patch, const TYPE *restrict table,       \
        TYPE *restrict out, const Py_ssize_t first, const Py_ssize_t stop) {                       \
        const Py_ssize_t merge = g->merge, times = g->times, frames = px->shape[0];                \
        const Py_ssize_t area = patch * patch, plane = times * area, row = CHANNELS * plane;       \
        const Py_ssize_t row_bytes = px->strides[1], frame_bytes = px->strides[0];                 \
        const Py_ssize_t across = g->grid_width / merge;                                           \
        const Py_ssize_t block_bytes = CHANNELS * patch * merge, block = merge * merge * row;      \
        const uint8_t *restrict data = px->data;                                                   \
        const Py_ssize_t most = frames > 1 || sizeof(TYPE) == 1 ? WIDE_GROUP : GROUP;              \
        const int staged = g->streams && most * block * sizeof(TYPE) <= STAGE_BYTES;               \
        TYPE stage[STAGE_BYTES / sizeof(TYPE)];                                                    \
        for (Py_ssize_t from = first, to; from < stop; from = to) {                                \
            const Py_ssize_t left = from % across, top = from / across * merge * patch;            \
            const Py_ssize_t rest = across - left < stop - from ? across - left : stop - from;     \
            to = from + (rest < most ? rest : most);                                               \
            TYPE *restrict group = staged ? stage : out + from * block;                            \
            for (Py_ssize_t i = 0; i < merge; i++)                                                 \
                for (Py_ssize_t t = 0; t < frames; t++)                                            \
                    for (Py_ssize_t y = 0; y < patch; y++) {                                       \
                        const uint8_t *restrict s = data + t * frame_bytes +                       \
                                                    (top + i * patch + y) * row_bytes +            \
                                                    left * block_bytes;                            \
                        for (Py_ssize_t b = 0; b < to - from; b++) {                               \
                            TYPE *restrict d =                                                     \
                                group + (b * merge + i) * merge * row + t * area + y * patch;      \
                            for (Py_ssize_t j = 0; j < merge; j++, d += row)                       \
                                for (Py_ssize_t x = 0; x < patch; x++, s += CHANNELS) {            \
                                    d[x] = table[s[0]];                                            \
                                    d[x + plane] = table[LEVELS + s[1]];                           \
                                    d[x + 2 * plane] = table[2 * LEVELS + s[2]];                   \
                                }                                                                  \
                        }                                                                          \
                    }                                                                              \
            for (Py_ssize_t r = 0; r < (to - from) * merge * merge; r++)                           \
                for (Py_ssize_t t = frames; t < times; t++)                                        \
                    for (int c = 0; c < CHANNELS; c++) {                                           \
                        TYPE *slot = group + r * row + c * plane + t * area;                       \
                        memcpy(slot, slot - area, (size_t)area * sizeof(TYPE));                    \
                    }                                                                              \
            if (staged)                                                                            \
                stream(out + from * block, stage, (size_t)((to - from) * block) * sizeof(TYPE));   \
        }                                                                                          \
    }                                                                                              \
    static void NAME(const void *task, ptrdiff_t from, ptrdiff_t to, int thread) {                 \
        const Patching *p = task;                                                                  \
        const Grid *g = &p->grid;                                                                  \
        if (g->patch == 14)                                                                        \
            NAME##_body(&p->pixels, g, 14, p->table, p->out, from, to);                            \
        else if (g->patch == 16)                                                                   \
            NAME##_body(&p->pixels, g, 16, p->table, p->out, from, to);                            \
        else                                                                                       \
            NAME##_body(&p->pixels, g, g->patch, p->table, p->out, from, to);                      \
        finish_streams();                                                                          \
    }

DEFINE_PATCHIFY(patchify_1, uint8_t)
DEFINE_PATCHIFY(patchify_2, uint16_t)
DEFINE_PATCHIFY(patchify_4, uint32_t)

/* Pixels (N, H, W, 3) with any strides into contiguous planes (N, 3, H, W). A band is a range of
 * rows, counted over all N. */
#define DEFINE_PLANES(NAME, TYPE)                                                                  \
    static void NAME(const void *task, ptrdiff_t from, ptrdiff_t to, int thread) {                 \
        const Patching *p = task;                                                                  \
        const Pixels *px = &p->pixels;                                                             \
        const TYPE *restrict table = p->table;                                                     \
        const Py_ssize_t height = px->shape[1], width = px->shape[2], area = height * width;       \
        const Py_ssize_t step = px->strides[2], channel = px->strides[3];                          \
        for (Py_ssize_t row = from; row < to; row++) {                                             \
            const Py_ssize_t n = row / height, y = row % height;                                   \
            const uint8_t *restrict s = px->data + n * px->strides[0] + y * px->strides[1];        \
            TYPE *restrict d = (TYPE *)p->out + n * CHANNELS * area + y * width;                   \
            if (channel == 1)                                                                      \
                for (Py_ssize_t x = 0; x < width; x++, s += step) {                                \
                    d[x] = table[s[0]];                                                            \
                    d[x + area] = table[LEVELS + s[1]];                                            \
                    d[x + 2 * area] = table[2 * LEVELS + s[2]];                                    \
                }                                                                                  \
            else                                                                                   \
                for (int c = 0; c < CHANNELS; c++, s += channel, d += area) {                      \
                    const TYPE *restrict t = table + c * LEVELS;                                   \
                    for (Py_ssize_t x = 0; x < width; x++)                                         \
                        d[x] = t[s[x * step]];                                                     \
                }                                                                                  \
        }                                                                                          \
    }

DEFINE_PLANES(planes_1, uint8_t)
DEFINE_PLANES(planes_2, uint16_t)
DEFINE_PLANES(planes_4, uint32_t)

/* Contiguous codes whose channel changes every `run` entries, entry by entry. */
#define DEFINE_LOOKUP(NAME, TYPE)                                                                  \
    static void NAME(const uint8_t *codes, Py_ssize_t count, Py_ssize_t run, const TYPE *table,    \
                     TYPE *out) {                                                                  \
        int c = 0;                                                                                 \
        for (Py_ssize_t start = 0; start < count; start += run, c = (c + 1) % CHANNELS) {          \
            const TYPE *t = table + c * LEVELS;                                                    \
            for (Py_ssize_t i = start; i < start + run; i++)                                       \
                out[i] = t[codes[i]];                                                              \
        }                                                                                          \
    }

DEFINE_LOOKUP(lookup_1, uint8_t)
DEFINE_LOOKUP(lookup_2, uint16_t)
DEFINE_LOOKUP(lookup_4, uint32_t)

/* The buffers of one call; released together. */
typedef struct {
    Py_buffer source, target, table;
    int opened;
} Buffers;

static void close_buffers(Buffers *b) {
    Py_buffer *all[] = {&b->source, &b->target, &b->table};
    for (int i = 0; i < b->opened; i++)
        PyBuffer_Release(all[i]);
    b->opened = 0;
}

static int fail(Buffers *b, const char *message) {
    close_buffers(b);
    PyErr_SetString(PyExc_ValueError, message);
    return -1;
}

/* Open the three buffers and check everything that does not depend on the layout. */
static int open_buffers(Buffers *b, PyObject *source, int source_flags, PyObject *target,
                        PyObject *table) {
    b->opened = 0;
    if (PyObject_GetBuffer(source, &b->source, source_flags) < 0)
        return -1;
    b->opened = 1;
    if (PyObject_GetBuffer(target, &b->target, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) < 0) {
        close_buffers(b);
        return -1;
    }
    b->opened = 2;
    if (PyObject_GetBuffer(table, &b->table, PyBUF_C_CONTIGUOUS) < 0) {
        close_buffers(b);
        return -1;
    }
    b->opened = 3;
    if (b->source.itemsize != 1)
        return fail(b, "pixels must be uint8");
    if (b->target.itemsize != 1 && b->target.itemsize != 2 && b->target.itemsize != 4)
        return fail(b, "the output's elements must have 1, 2 or 4 bytes");
    if (b->table.itemsize != b->target.itemsize)
        return fail(b, "the table's elements must be as large as the output's");
    if (b->table.len != CHANNELS * LEVELS * b->table.itemsize)
        return fail(b, "a table has 3 x 256 entries");
    return 0;
}

/* Hand the work of a layout to as many threads as its output is worth. */
static void run_patching(Patching *p, const Buffers *b, const BandFunction by_size[3],
                         Py_ssize_t count, Py_ssize_t threads) {
    const BandFunction function = by_size[b->target.itemsize / 2];
    p->table = b->table.buf;
    p->out = b->target.buf;
    Py_BEGIN_ALLOW_THREADS
    run_bands(function, p, count, useful_threads(b->target.len, BAND_BYTES, threads));
    Py_END_ALLOW_THREADS
}

static void describe_pixels(const Buffers *b, Pixels *px) {
    px->data = b->source.buf;
    for (int i = 0; i < 4; i++) {
        px->shape[i] = b->source.shape[i];
        px->strides[i] = b->source.strides[i];
    }
}

static PyObject *finish(Buffers *b) {
    close_buffers(b);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(patchify_doc,
             "patchify(frames, out, table, patch, merge, times, threads)\n--\n\n"
             "Write up to `times` uint8 frames (T, H, W, 3) into patch rows of the output.");

static PyObject *patchify(PyObject *self, PyObject *args) {
    PyObject *frames, *out, *table;
    Py_ssize_t threads;
    Patching p;
    Grid g;
    Buffers b;
    if (!PyArg_ParseTuple(args, "OOOnnnn:patchify", &frames, &out, &table, &g.patch, &g.merge,
                          &g.times, &threads))
        return NULL;
    if (open_buffers(&b, frames, PyBUF_STRIDES, out, table) < 0)
        return NULL;
    if (b.source.ndim != 4 || b.source.shape[3] != CHANNELS || b.source.strides[3] != 1 ||
        b.source.strides[2] != CHANNELS)
        return fail(&b, "frames are (frames, height, width, 3) with adjacent pixels"), NULL;
    if (g.patch < 1 || g.patch > 4096 || g.merge < 1 || g.merge > 4096 || g.times < 1 ||
        g.times > 4096)
        return fail(&b, "patch, merge and times must lie between 1 and 4096"), NULL;
    if (threads < 1)
        return fail(&b, "there is at least one thread"), NULL;
    describe_pixels(&b, &p.pixels);
    const Py_ssize_t *shape = p.pixels.shape;
    if (shape[0] < 1 || shape[0] > g.times)
        return fail(&b, "there must be between 1 and times frames"), NULL;
    const Py_ssize_t side = g.patch * g.merge;
    if (shape[1] % side || shape[2] % side)
        return fail(&b, "height and width must be multiples of patch x merge"), NULL;
    g.grid_height = shape[1] / g.patch;
    g.grid_width = shape[2] / g.patch;
    /* height * width * 3 pixels exist in memory, so only the factor `times` can overflow. */
    const Py_ssize_t pixels = shape[1] * shape[2] * CHANNELS;
    if (pixels > PY_SSIZE_T_MAX / (g.times * b.target.itemsize) ||
        b.target.len != pixels * g.times * b.target.itemsize)
        return fail(&b, "the output must hold every patch of the frames"), NULL;
    if (pixels == 0)
        return finish(&b);
    g.streams = b.target.len > STREAM_BYTES;
    p.grid = g;
    const BandFunction by_size[] = {patchify_1, patchify_2, patchify_4};
    run_patching(&p, &b, by_size, g.grid_height * g.grid_width / (g.merge * g.merge), threads);
    return finish(&b);
}

PyDoc_STRVAR(planes_doc,
             "planes(pixels, out, table, threads)\n--\n\n"
             "Write uint8 pixels (N, H, W, 3), of any strides, into planes (N, 3, H, W).");

static PyObject *planes(PyObject *self, PyObject *args) {
    PyObject *pixels, *out, *table;
    Py_ssize_t threads;
    Patching p;
    Buffers b;
    if (!PyArg_ParseTuple(args, "OOOn:planes", &pixels, &out, &table, &threads))
        return NULL;
    if (open_buffers(&b, pixels, PyBUF_STRIDES, out, table) < 0)
        return NULL;
    if (b.source.ndim != 4 || b.source.shape[3] != CHANNELS)
        return fail(&b, "pixels are (items, height, width, 3)"), NULL;
    if (b.source.len > PY_SSIZE_T_MAX / b.target.itemsize ||
        b.target.len != b.source.len * b.target.itemsize)
        return fail(&b, "the output must have as many elements as there are pixels"), NULL;
    if (threads < 1)
        return fail(&b, "there is at least one thread"), NULL;
    describe_pixels(&b, &p.pixels);
    const BandFunction by_size[] = {planes_1, planes_2, planes_4};
    run_patching(&p, &b, by_size, p.pixels.shape[0] * p.pixels.shape[1], threads);
    return finish(&b);
}

PyDoc_STRVAR(lookup_doc,
             "lookup(codes, out, table, run)\n--\n\n"
             "Write the entry of each contiguous uint8 code; the channel changes every `run` codes.");

static PyObject *lookup(PyObject *self, PyObject *args) {
    PyObject *codes, *out, *table;
    Py_ssize_t run;
    Buffers b;
    if (!PyArg_ParseTuple(args, "OOOn:lookup", &codes, &out, &table, &run))
        return NULL;
    if (open_buffers(&b, codes, PyBUF_C_CONTIGUOUS, out, table) < 0)
        return NULL;
    if (run < 1 || b.source.len % run || (b.source.len / run) % CHANNELS)
        return fail(&b, "the codes must be a multiple of three runs"), NULL;
    if (b.source.len > PY_SSIZE_T_MAX / b.target.itemsize ||
        b.target.len != b.source.len * b.target.itemsize)
        return fail(&b, "the output must have as many elements as there are codes"), NULL;
    Py_BEGIN_ALLOW_THREADS
    if (b.target.itemsize == 1)
        lookup_1(b.source.buf, b.source.len, run, b.table.buf, b.target.buf);
    else if (b.target.itemsize == 2)
        lookup_2(b.source.buf, b.source.len, run, b.table.buf, b.target.buf);
    else
        lookup_4(b.source.buf, b.source.len, run, b.table.buf, b.target.buf);
    Py_END_ALLOW_THREADS
    return finish(&b);
}

static PyMethodDef methods[] = {
    {"patchify", patchify, METH_VARARGS, patchify_doc},
    {"planes", planes, METH_VARARGS, planes_doc},
    {"lookup", lookup, METH_VARARGS, lookup_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_kernels",
    .m_doc = "One pass from decoded uint8 pixels to a feature's final layout and element type.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__kernels(void) { return PyModuleDef_Init(&module); }
