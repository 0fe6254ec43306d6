/* Batch-wide and per-sample normalisation on the CPU.

   Plain C and OpenMP, no torch and no Python: called through ctypes on data pointers. bgn/partition.py says what blocks, groups and
   cells are, bgn/backends/reference.py what is computed. Results do not depend on the number of threads: the order of every sum
   is fixed by the plan. */

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#pragma GCC diagnostic ignored "-Wpsabi" /* vectors are passed to static functions only */

enum {
    BLOCK = 16, /* additions of a lane before its sum goes to double */
    PUSH = 256, /* elements that are worth storing past the caches one by one */
    ROWS = 4,   /* rows of channels_last arrays that are summed in registers */
    STRIP = 4,  /* rows that are read side by side */
    BATCH = 256, /* cells or runs whose sums are kept in lanes at a time */
};

/* The first of n things that are this thread's turn (k = 0), and the first after them (k = 1). A thread that writes what it has summed
   finds the end of it in its own cache. */
static i64 share(i64 n, int k) { return n * (omp_get_thread_num() + k) / omp_get_num_threads(); }

#define BFLOAT 1
#define BINARY 2
#define JOIN3(a, b, c) a##_##b##_##c
#define JOIN(a, b, c) JOIN3(a, b, c)
#define NAME(f) JOIN(f, ISA, TYPE)

#define ISA base
#define BYTES 16
#include "types.inc"
#undef ISA
#undef BYTES

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAVE_AVX2
#include <cpuid.h>
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define HAVE_F16C
#define ISA avx2
#define BYTES 32
#include "types.inc"
#undef ISA
#undef BYTES
#pragma GCC pop_options
#endif

static int wide = 0; /* whether AVX2 is used */

/* allow = 0 keeps to the baseline instruction set; returns whether AVX2 is used */
int bgn_use_avx2(int allow) {
#ifdef HAVE_AVX2
    unsigned a, b, c = 0, d;
    int f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    wide = allow && f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    (void)allow;
#endif
    return wide;
}

#ifdef HAVE_AVX2
#define PICK(f, type, ...) (wide ? f##_avx2_##type(__VA_ARGS__) : f##_base_##type(__VA_ARGS__))
#else
#define PICK(f, type, ...) f##_base_##type(__VA_ARGS__)
#endif
#define DISPATCH(result, f, p, ...)                                    \
    switch ((p)->type) {                                               \
    case F32: result = PICK(f, f32, p, __VA_ARGS__); break;            \
    case F64: result = PICK(f, f64, p, __VA_ARGS__); break;            \
    case BF16: result = PICK(f, bf16, p, __VA_ARGS__); break;          \
    default: result = PICK(f, f16, p, __VA_ARGS__);                    \
    }

/* A large fresh output is mostly page faults: ask for large pages on what lies in it completely. A hint, so failure is fine. */
static void advise(const bgn_plan *p, void *memory) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t page = 2 << 20;
    uintptr_t size = (uintptr_t)(p->N * p->D * p->item);
    uintptr_t from = ((uintptr_t)memory + page - 1) / page * page, to = ((uintptr_t)memory + size) / page * page;
    if (memory && to >= from + 2 * page) madvise((void *)from, to - from, MADV_HUGEPAGE);
#else
    (void)p, (void)memory;
#endif
}

/* running = (1 - momentum) * running + momentum * average over the blocks of mean and unbiased variance; both (G). The counter, where
   there is one, counts this batch, and a momentum below 0 stands for 1 / counter. */
static void update(const bgn_plan *p, const void *mean, const void *m2, void *running_mean, void *running_var, double momentum, i64 *counter) {
    if (counter) ++*counter;
    if (momentum < 0) momentum = counter ? 1 / (double)*counter : 0;
#define MOVE(T)                                                                                                               \
    for (i64 g = 0; g < p->G; g++) {                                                                                          \
        T *to_mean = (T *)running_mean + g, *to_var = (T *)running_var + g;                                                   \
        double count = bgn_count(p, g), mu = 0, var = 0;                                                                      \
        for (i64 at = g; at < p->B * p->G; at += p->G) mu += (double)((const T *)mean)[at], var += (double)((const T *)m2)[at]; \
        *to_mean = (T)((1 - momentum) * (double)*to_mean + momentum * mu / (double)p->B);                                     \
        *to_var = (T)((1 - momentum) * (double)*to_var + momentum * var / (count - 1) / (double)p->B);                        \
    }
    if (p->type == F64) {
        MOVE(double)
    } else {
        MOVE(float)
    }
#undef MOVE
}

/* Statistics are of the type that is computed with: double for F64, else float. w, b, gx, gw and gb may be NULL; w, b, gw and gb are of
   the statistics' type or, where low, of x's. All return 0, or 1 where memory ran out. */

/* stats receives mean, m2 and rstd, each (B, G), for PN each (N, P) and no m2; running_mean may be NULL */
int bgn_forward(const bgn_plan *p, const void *x, void *y, const void *w, const void *b, int low, double eps, void *stats, void *running_mean, void *running_var, double momentum, i64 *counter, int threads) {
    i64 size = (p->walk >= POSITIONAL ? p->N * p->P : p->B * p->G) * (p->type == F64 ? 8 : 4);
    void *mean = stats, *m2 = (char *)stats + size, *rstd = (char *)stats + 2 * size;
    advise(p, y);
    int failed;
    DISPATCH(failed, forward, p, x, y, w, b, low, eps, mean, m2, rstd, threads)
    if (running_mean && !failed) update(p, mean, m2, running_mean, running_var, momentum, counter);
    return failed;
}

/* statistics are given, one per group; rstd receives what the backward pass needs */
int bgn_apply(const bgn_plan *p, const void *x, void *y, const void *w, const void *b, int low, double eps, const void *mean, const void *var, void *rstd, int threads) {
    advise(p, y);
    int failed;
    DISPATCH(failed, apply, p, x, y, w, b, low, eps, mean, var, rstd, threads)
    return failed;
}

/* frozen: the statistics do not depend on x */
int bgn_backward(const bgn_plan *p, const void *gy, const void *x, void *gx, const void *w, int low, const void *mean, const void *rstd, void *gw, void *gb, int frozen, int threads) {
    advise(p, gx);
    int failed;
    DISPATCH(failed, backward, p, gy, x, gx, w, low, mean, rstd, gw, gb, frozen, threads)
    return failed;
}
