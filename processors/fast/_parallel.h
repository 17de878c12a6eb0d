/* Splitting one call's work over threads that live as long as the call.
 *
 * Bands are told apart by their range alone, so what is written does not depend on how many threads
 * there were, nor on which of them came first.
 */
#ifndef MMPREP_PARALLEL_H
#define MMPREP_PARALLEL_H

#include <pthread.h>
#include <stddef.h>

#define MAX_THREADS 16
#define BAND_STACK_BYTES (512 << 10)

/* Does the work of [from, to); `thread` counts from 0, for buffers that each has to itself. */
typedef void (*BandFunction)(const void *task, ptrdiff_t from, ptrdiff_t to, int thread);

typedef struct {
    BandFunction function;
    const void *task;
    ptrdiff_t from, to;
    int thread;
} Band;

static void *run_band(void *argument) {
    const Band *band = argument;
    band->function(band->task, band->from, band->to, band->thread);
    return NULL;
}

/* How many threads are worth starting for so much work, of those allowed. */
static int useful_threads(ptrdiff_t work, ptrdiff_t least_each, ptrdiff_t allowed) {
    ptrdiff_t threads = work / least_each;
    if (threads > allowed)
        threads = allowed;
    if (threads > MAX_THREADS)
        threads = MAX_THREADS;
    return threads < 1 ? 1 : (int)threads;
}

/* Run [0, count) in `threads` bands, the first by the caller, who also does those that got no
 * thread. Holds no lock of the interpreter. */
static void run_bands(BandFunction function, const void *task, ptrdiff_t count, int threads) {
    Band bands[MAX_THREADS];
    pthread_t ids[MAX_THREADS];
    int is_started[MAX_THREADS] = {0};
    pthread_attr_t attributes;
    const int has_attributes = threads > 1 && pthread_attr_init(&attributes) == 0;
    if (has_attributes)
        pthread_attr_setstacksize(&attributes, BAND_STACK_BYTES);
    for (int i = 0; i < threads; i++)
        bands[i] = (Band){function, task, count * i / threads, count * (i + 1) / threads, i};
    for (int i = 1; i < threads; i++)
        is_started[i] =
            has_attributes && pthread_create(&ids[i], &attributes, run_band, &bands[i]) == 0;
    for (int i = 0; i < threads; i++)
        if (!is_started[i])
            run_band(&bands[i]);
    for (int i = 1; i < threads; i++)
        if (is_started[i])
            pthread_join(ids[i], NULL);
    if (has_attributes)
        pthread_attr_destroy(&attributes);
}

#endif
