/* The C core against naive loops in double precision, without torch: what a compiler or an
   architecture has to pass.

   It is built from the sources themselves, so that whatever they allocate can be watched.
   Returns 0, or prints what is wrong. */

#include "native_memory.h"

#include <math.h>
#include <omp.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define malloc(size) allocated(size, 0)
#define calloc(n, size) allocated((n) * (size), 1)
#define free(memory) freed(memory)
#include "bgn.c"
#include "plan.c"
#undef malloc
#undef calloc
#undef free

typedef struct {
    i64 N, C, P, B, G;
    int whole, type, walk;
    int has_w, has_b, low;      /* parameters; low: of x's type */
    int want_x, want_w, want_b; /* gradients */
    int streams, tiled;         /* 1 and 0 send small arrays the ways of large ones */
    int columns;                /* whether to walk by columns whatever the length of cells */
    i64 pieces;                 /* partial sums, at most; 0: as planned */
    double scale;               /* of x: squares of large and small floats do not fit float */
    int early;                  /* on which side arrays are fenced off without a gap */
} problem;

static const double RELATIVE[] = {1e-4, 1e-10, 1.6e-2, 2e-3}; /* as in tolerance.py */
static const double ABSOLUTE[] = {2e-5, 1e-10, 1.6e-2, 2e-3};

static int is_positional(const problem *q) { return q->walk >= POSITIONAL; }

static double half(uint16_t bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double size = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    if (exponent == 31) size = fraction ? NAN : INFINITY;
    return bits >> 15 ? -size : size;
}

static double get(int type, const void *array, i64 at) {
    if (type == F32) return ((const float *)array)[at];
    if (type == F64) return ((const double *)array)[at];
    uint16_t bits = ((const uint16_t *)array)[at];
    if (type == F16) return half(bits);
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* for normal numbers; 16-bit types cut off what they have no bits for */
static void set(int type, void *array, i64 at, double value) {
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    if (type == F32) ((float *)array)[at] = narrow;
    else if (type == F64) ((double *)array)[at] = value;
    else if (type == BF16) ((uint16_t *)array)[at] = (uint16_t)(bits >> 16);
    else {
        uint32_t size = ((bits & 0x7fffffff) >> 13) - (112 << 10);
        ((uint16_t *)array)[at] = (uint16_t)((bits >> 16 & 0x8000) | size);
    }
}

static uint64_t seed = 1;

/* 0 to n - 1 */
static i64 draw(i64 n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (i64)((seed >> 33) % (uint64_t)n);
}

/* roughly normal, with a mean of `shift` and a spread of 1, and never too small for binary16 */
static double noise(double shift) {
    return (double)(draw(2001) + draw(2001) + draw(2001) - 3000) / 1000 + shift + 5e-4;
}

static void *array(const problem *q, int type, i64 n, int there) {
    return there ? fenced((size_t)(n * ITEM_BYTES[type]), q->early) : NULL;
}

static void *noisy(const problem *q, int type, i64 n, double shift, int there) {
    void *made = array(q, type, n, there);
    for (i64 i = 0; made && i < n; i++) set(type, made, i, noise(shift));
    return made;
}

static double *zeros(i64 n) {
    double *made = calloc((size_t)n, sizeof(double));
    if (!made) fail("no memory for the test itself");
    return made;
}

/* what is expected, and where each element of x belongs */
typedef struct {
    i64 n, S, *channel, *statistic; /* S statistics */
    double *count, *mean, *var, *rstd, *y, *gx, *gw, *gb;
    double *hat, *g; /* x normalized, gy times weight */
    double *r, *d;   /* (n) corrections of renormalization, or NULL */
} answer;

static answer belongings(const problem *q) {
    answer a = {.n = q->N * q->C * q->P, .S = is_positional(q) ? q->N * q->P : q->B * q->G};
    a.channel = (i64 *)zeros(a.n), a.statistic = (i64 *)zeros(a.n);
    a.count = zeros(a.S), a.mean = zeros(a.S), a.var = zeros(a.S), a.rstd = zeros(a.S);
    a.hat = zeros(a.n), a.g = zeros(a.n), a.y = zeros(a.n), a.gx = zeros(a.n);
    a.gw = zeros(q->C), a.gb = zeros(q->C);
    const int last = q->walk == CHANNELS_LAST || q->walk == BY_ROWS;
    for (i64 n = 0; n < q->N; n++)
        for (i64 c = 0; c < q->C; c++)
            for (i64 p = 0; p < q->P; p++) {
                i64 at = last ? (n * q->P + p) * q->C + c : (n * q->C + c) * q->P + p;
                i64 unit = q->whole ? c : c * q->P + p, units = q->whole ? q->C : q->C * q->P;
                i64 group = ((unit + 1) * q->G - 1) / units, block = n / (q->N / q->B);
                a.channel[at] = c;
                a.statistic[at] = is_positional(q) ? n * q->P + p : block * q->G + group;
                a.count[a.statistic[at]]++;
            }
    return a;
}

static void forget(answer a) {
    free(a.channel), free(a.statistic), free(a.count), free(a.mean), free(a.var), free(a.rstd);
    free(a.hat), free(a.g), free(a.y), free(a.gx), free(a.gw), free(a.gb);
}

static void expect_statistics(const problem *q, answer a, const void *x, double eps) {
    for (i64 i = 0; i < a.n; i++)
        a.mean[a.statistic[i]] += get(q->type, x, i) / a.count[a.statistic[i]];
    for (i64 i = 0; i < a.n; i++) {
        i64 s = a.statistic[i];
        a.var[s] += pow(get(q->type, x, i) - a.mean[s], 2) / a.count[s];
    }
    for (i64 s = 0; s < a.S; s++) a.rstd[s] = 1 / sqrt(a.var[s] + eps);
}

/* outputs and gradients for the statistics of a, which are x's own or, where frozen, given; w and b
   are of type t */
static void expect(const problem *q, answer a, int t, const void *x, const void *gy, const void *w,
                   const void *b, int frozen) {
    double *mean_g = zeros(a.S), *mean_product = zeros(a.S); /* of g, and of g * hat */
    for (i64 c = 0; c < q->C; c++) a.gw[c] = a.gb[c] = 0;
    for (i64 i = 0; i < a.n; i++) {
        i64 s = a.statistic[i], c = a.channel[i];
        double gradient = get(q->type, gy, i), weight = w ? get(t, w, c) : 1;
        a.hat[i] = (get(q->type, x, i) - a.mean[s]) * a.rstd[s];
        double r = a.r ? a.r[i] : 1, z = a.hat[i] * r + (a.d ? a.d[i] : 0);
        a.g[i] = gradient * weight * r;
        a.y[i] = z * weight + (b ? get(t, b, c) : 0);
        a.gw[c] += gradient * z, a.gb[c] += gradient;
        if (frozen) continue;
        mean_g[s] += a.g[i] / a.count[s], mean_product[s] += a.g[i] * a.hat[i] / a.count[s];
    }
    for (i64 i = 0; i < a.n; i++) {
        i64 s = a.statistic[i];
        a.gx[i] = a.rstd[s] * (a.g[i] - mean_g[s] - a.hat[i] * mean_product[s]);
    }
    free(mean_g), free(mean_product);
}

/* a plan as that of a larger array would be */
static void vary(bgn_plan *p, const problem *q) {
    if (q->streams) p->streams = p->streams_eval = p->fetches = 1;
    if (!q->tiled && q->walk == SLICED) p->tiles = 0;
    if (q->columns && bgn_plan_columns(p)) fail("memory for columns");
    if (!q->pieces) return;
    if (q->walk == POSITIONAL) {
        p->tile_size = parts(p->P, q->pieces), p->tiles = parts(p->P, p->tile_size);
    } else if (q->walk != BY_ROWS) {
        i64 rows = q->walk == SLICED ? p->samples : p->samples * p->P;
        i64 whole = p->column_cell ? p->D : rows;
        p->chunk_size = parts(whole, q->pieces), p->chunks = parts(whole, p->chunk_size);
    }
    p->partials = least(3, p->N);
}

/* an array that is made by the C code, and what it should be */
typedef struct {
    const char *name;
    int type;
    void *found;
    i64 n;
    const double *expected;
    double scale; /* of what is expected */
} result;

/* so that nothing of the run before is mistaken for this one's */
static void wipe(const result *all, int count) {
    for (int k = 0; k < count; k++)
        if (all[k].found)
            memset(all[k].found, 0xff, (size_t)(all[k].n * ITEM_BYTES[all[k].type]));
}

static void compare(const result *all, int count) {
    for (const result *r = all; r < all + count; r++) {
        double scale = r->scale; /* or larger: gradients of parameters are long sums */
        for (i64 i = 0; i < r->n; i++) scale = fmax(scale, fabs(r->expected[i]));
        for (i64 i = 0; r->found && i < r->n; i++) {
            double value = get(r->type, r->found, i), expected = r->expected[i];
            double most = ABSOLUTE[r->type] * scale + RELATIVE[r->type] * fabs(expected);
            if (fabs(value - expected) <= most) continue;
            printf("%s: %s[%lld] is %.9g, expected %.9g\n", name, r->name, (long long)i, value,
                   expected);
            exit(1);
        }
    }
}

/* a number that depends on every bit */
static uint64_t digest(const result *all, int count) {
    uint64_t hash = 1;
    for (const result *r = all; r < all + count; r++)
        for (i64 i = 0; r->found && i < r->n * ITEM_BYTES[r->type]; i++)
            hash = (hash ^ ((unsigned char *)r->found)[i]) * 1099511628211u;
    return hash;
}

/* Running statistics, one per group or one per channel. */
static void check_running(const problem *q, answer a, const bgn_plan *p, const void *x, int wide,
                          void *stats, i64 entries) {
    void *mean = noisy(q, wide, entries, 0, 1), *var = noisy(q, wide, entries, 9, 1);
    double *to_mean = zeros(entries), *to_var = zeros(entries), part = .25 / (double)q->B;
    const result all[] = {{"running mean", wide, mean, entries, to_mean, 1},
                          {"running var", wide, var, entries, to_var, 1}};
    i64 counter = 3;
    for (i64 e = 0; e < entries; e++) {
        i64 group = entries == q->G ? e : ((e + 1) * q->G - 1) / q->C;
        to_mean[e] = .75 * get(wide, mean, e), to_var[e] = .75 * get(wide, var, e);
        for (i64 s = group; s < a.S; s += q->G) {
            to_mean[e] += part * a.mean[s];
            to_var[e] += part * a.var[s] * a.count[s] / (a.count[s] - 1);
        }
    }
    if (bgn_forward(p, x, NULL, NULL, NULL, 0, 0, stats, mean, var, entries, .25, &counter, NULL,
                    NULL, 2))
        fail("forward without an output");
    compare(all, 2);
    if (counter != 4) fail("the counter does not count");
    free(to_mean), free(to_var), unfence(mean), unfence(var);
}

/* Renormalization, towards statistics of groups or of channels. all: from y to gb, whose values
   follow in a. */
static void check_renorm(const problem *q, answer a, const bgn_plan *p, const result *all, int t,
                         int wide, const void *x, const void *gy, const void *w, const void *b,
                         double eps, void *stats, i64 entries) {
    char *mean = noisy(q, wide, entries, 2, 1), *var = noisy(q, wide, entries, 9, 1);
    char *rstd = (char *)stats + 2 * a.S * ITEM_BYTES[wide];
    char *r = array(q, wide, q->B * entries, 1), *d = array(q, wide, q->B * entries, 1);
    bgn_renorm renorm = {mean, var, entries, 1.5, .5, r, d};
    for (i64 e = 0; e < entries; e++) { /* statistics like those of x */
        set(wide, mean, e, get(wide, mean, e) * q->scale);
        set(wide, var, e, get(wide, var, e) * q->scale * q->scale);
    }
    a.r = zeros(a.n), a.d = zeros(a.n);
    for (i64 i = 0; i < a.n; i++) {
        i64 s = a.statistic[i], e = entries == q->G ? s % q->G : a.channel[i];
        double sigma = sqrt(get(wide, var, e) + eps);
        a.r[i] = fmin(fmax(1 / a.rstd[s] / sigma, 1 / renorm.r_max), renorm.r_max);
        a.d[i] = fmin(fmax((a.mean[s] - get(wide, mean, e)) / sigma, -renorm.d_max), renorm.d_max);
    }
    expect(q, a, t, x, gy, w, b, 0);
    uint64_t first = 0;
    for (int threads = 1; threads <= 3; threads++) {
        wipe(all, 4);
        if (bgn_forward(p, x, all[0].found, w, b, q->low, eps, stats, NULL, NULL, 0, 0, NULL,
                        &renorm, NULL, threads))
            fail("forward with renormalization");
        if (bgn_backward(p, gy, x, all[1].found, w, q->low, stats, rstd, all[2].found, all[3].found,
                         0, &renorm, NULL, threads))
            fail("backward with renormalization");
        compare(all, 4);
        if (threads > 1 && digest(all, 4) != first) fail("renormalization depends on threads");
        first = digest(all, 4);
    }
    free(a.r), free(a.d), unfence(mean), unfence(var), unfence(r), unfence(d);
}

/* The sweeps one after the other make what all has, to the bit. */
static void check_sweeps(const problem *q, answer a, const bgn_plan *p, const result *all, int wide,
                         const void *x, const void *gy, const void *w, const void *b, double eps,
                         int threads) {
    void *y = all[0].found, *gx = all[1].found, *gw = all[2].found, *gb = all[3].found;
    void *rstd = all[4].found, *mean = all[5].found, *var = all[6].found;
    double *sums = fenced((size_t)(2 * a.S) * sizeof(double), q->early);
    uint64_t before = digest(all, 7);
    wipe(all, 7);
    if (bgn_moments(p, x, mean, var, threads)) fail("moments");
    for (i64 s = 0; s < a.S; s++) set(wide, rstd, s, 1 / sqrt(get(wide, var, s) + eps));
    if (bgn_write(p, x, y, w, b, q->low, mean, rstd, threads)) fail("write");
    if (bgn_products(p, gy, x, w, q->low, mean, rstd, sums, gw, gb, threads)) fail("products");
    for (i64 s = 0; s < 2 * a.S; s++) sums[s] /= a.count[s % a.S];
    if (gx && bgn_write_gradient(p, gy, x, gx, w, q->low, mean, rstd, sums, threads))
        fail("write_gradient");
    if (digest(all, 7) != before) fail("the sweeps differ from the fused passes");
    unfence(sums);
}

/* Statistics that are given, in one block; what x holds does not matter to gx. */
static void check_given(const problem *q, answer a, const bgn_plan *p, const result *all, int t,
                        int wide, void *x, const void *gy, const void *w, const void *b) {
    const double eps = 1e-5;
    void *y = all[0].found, *gx = all[1].found, *gw = all[2].found, *gb = all[3].found;
    void *rstd = all[4].found, *mean = all[5].found, *var = noisy(q, wide, a.S, 9, 1);
    for (i64 s = 0; s < a.S; s++) {
        set(wide, mean, s, noise(2));
        a.mean[s] = get(wide, mean, s), a.rstd[s] = 1 / sqrt(get(wide, var, s) + eps);
    }
    expect(q, a, t, x, gy, w, b, 1);
    for (int threads = 1; threads <= 3; threads++) {
        wipe(all, 5);
        if (bgn_apply(p, x, y, w, b, q->low, eps, mean, var, rstd, NULL, threads)) fail("apply");
        if (bgn_backward(p, gy, x, gx, w, q->low, mean, rstd, gw, gb, 1, NULL, NULL, threads))
            fail("backward with given statistics");
        compare(all, 5);
    }
    if (!gx) return unfence(var);
    memset(x, 0xff, (size_t)(a.n * ITEM_BYTES[q->type])); /* NaN */
    wipe(all + 1, 1);
    if (bgn_backward(p, gy, x, gx, w, q->low, mean, rstd, gw, gb, 1, NULL, NULL, 2))
        fail("frozen backward");
    compare(all + 1, 1);
    wipe(all + 1, 1);
    if (bgn_write_gradient(p, gy, x, gx, w, q->low, mean, rstd, NULL, 2)) fail("frozen gradient");
    compare(all + 1, 1);
    unfence(var);
}

static void check(const problem *q) {
    const double eps = 1e-5 * q->scale * q->scale, tiny = 1 / q->scale;
    const int wide = q->type == F64 ? F64 : F32, t = q->low ? q->type : wide;
    answer a = belongings(q);
    const i64 n = a.n, S = a.S, C = q->C;
    void *x = noisy(q, q->type, n, 3, 1), *gy = noisy(q, q->type, n, 0, 1);
    for (i64 i = 0; i < n; i++) set(q->type, x, i, get(q->type, x, i) * q->scale);
    void *w = noisy(q, t, C, 1, q->has_w), *b = noisy(q, t, C, 0, q->has_b);
    void *y = array(q, q->type, n, 1), *gx = array(q, q->type, n, q->want_x);
    void *gw = array(q, t, C, q->want_w), *gb = array(q, t, C, q->want_b);
    char *stats = array(q, wide, 3 * S, 1), *mean = stats, *var = stats + S * ITEM_BYTES[wide];
    char *rstd = stats + 2 * S * ITEM_BYTES[wide];
    const result all[] = {
        {"y", q->type, y, n, a.y, 1},
        {"gx", q->type, gx, n, a.gx, tiny},
        {"gw", t, gw, C, a.gw, 1},
        {"gb", t, gb, C, a.gb, 1},
        {"rstd", wide, rstd, S, a.rstd, tiny},
        {"mean", wide, mean, S, a.mean, q->scale},
        {"var", wide, var, S, a.var, q->scale * q->scale},
    };
    bgn_plan *p = bgn_plan_new(q->N, C, q->P, q->B, q->G, q->whole, q->type, q->walk);
    vary(p, q);
    uint64_t first = 0;
    expect_statistics(q, a, x, eps);
    expect(q, a, t, x, gy, w, b, 0);
    for (int threads = 1; threads <= 3; threads++) {
        wipe(all, 7);
        if (bgn_forward(p, x, y, w, b, q->low, eps, stats, NULL, NULL, 0, 0, NULL, NULL, NULL,
                        threads))
            fail("forward");
        if (bgn_backward(p, gy, x, gx, w, q->low, mean, rstd, gw, gb, 0, NULL, NULL, threads))
            fail("backward");
        compare(all, 7);
        if (threads > 1 && digest(all, 7) != first) fail("bits depend on the number of threads");
        first = digest(all, 7);
        if (!is_positional(q)) check_sweeps(q, a, p, all, wide, x, gy, w, b, eps, threads);
    }
    if (!is_positional(q)) {
        check_running(q, a, p, x, wide, stats, q->G);
        if (q->whole) check_running(q, a, p, x, wide, stats, C);
        check_renorm(q, a, p, all, t, wide, x, gy, w, b, eps, stats, q->G);
        if (q->whole) check_renorm(q, a, p, all, t, wide, x, gy, w, b, eps, stats, C);
        if (q->B == 1) check_given(q, a, p, all, t, wide, x, gy, w, b);
    }
    bgn_plan_free(p);
    if (alive) fail("memory was not freed");
    forget(a), unfence(x), unfence(gy), unfence(w), unfence(b), unfence(y), unfence(gx);
    unfence(gw), unfence(gb), unfence(stats);
}

static void call_it(const problem *q, const char *what) {
    static const char *TYPES[] = {"f32", "f64", "bf16", "f16"};
    static const char *WALKS[] = {"sliced", "channels_last", "positional", "by rows"};
    int end = snprintf(name, sizeof name, "%s %s %s N=%d C=%d P=%d B=%d G=%d", what, TYPES[q->type],
                       WALKS[q->walk], (int)q->N, (int)q->C, (int)q->P, (int)q->B, (int)q->G);
    snprintf(name + end, sizeof name - (size_t)end,
             " whole=%d low=%d streams=%d tiled=%d columns=%d pieces=%d scale=%g early=%d", q->whole,
             q->low, q->streams, q->tiled, q->columns, (int)q->pieces, q->scale, q->early);
}

/* Any shape, partition and choice of arrays; statistics have at least 4 elements. */
static problem drawn(void) {
    static const i64 CHANNELS[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 36, 64, 300};
    static const i64 POSITIONS[] = {1, 1, 2, 3, 4, 7, 16, 49, 65, 130, 729, 5000};
    for (;;) {
        problem q = {.N = draw(9) + 1, .C = CHANNELS[draw(14)], .P = POSITIONS[draw(12)]};
        q.type = (int)draw(4), q.walk = draw(9) ? (int)draw(3) : BY_ROWS;
        i64 D = q.C * q.P, kinds[] = {1, q.C, D, draw(D) + 1, draw(least(D, 60)) + 1};
        q.B = draw(3) ? 1 : draw(2) ? q.N : draw(q.N) + 1;
        q.G = kinds[draw(5)];
        q.whole = q.C % q.G == 0 || (q.G < q.C && draw(2));
        q.has_w = draw(3) > 0, q.has_b = draw(3) > 0, q.low = (int)draw(2);
        q.want_x = draw(4) > 0, q.want_w = draw(4) > 0, q.want_b = draw(4) > 0;
        q.streams = (int)draw(2), q.tiled = draw(3) > 0, q.early = (int)draw(2);
        q.columns = !is_positional(&q) && !draw(3);
        q.pieces = draw(2) ? draw(12) + 1 : 0;
        q.scale = draw(3) || q.type == F16 ? 1 : draw(2) ? 0x1p62 : 0x1p-60;
        if (is_positional(&q)) q.B = q.G = q.whole = 1;
        i64 smallest = q.N / q.B * (q.whole ? q.C / q.G * q.P : D / q.G);
        if (is_positional(&q)) smallest = q.C;
        if (q.N % q.B == 0 && smallest >= 4 && q.N * D <= (draw(20) ? 20000 : 200000)) return q;
    }
}

/* What fails where memory runs out, by number; -1: there is no such call. */
static int attempt(int what, bgn_plan *p, const float *x, float *y, float *stats, double *sums) {
    float *var = stats + 40, *rstd = stats + 80, *running = stats + 120;
    const int positional = p && p->walk >= POSITIONAL;
    if (what > 2 && positional) return -1;
    if (what == 0) return !p;
    if (what == 1)
        return bgn_forward(p, x, y, NULL, NULL, 0, 1e-5, stats, positional ? NULL : running,
                           running, p->G, .1, NULL, NULL, NULL, 2);
    if (what == 2)
        return bgn_backward(p, x, x, y, NULL, 0, stats, rstd, NULL, NULL, 0, NULL, NULL, 2);
    if (what == 3) return bgn_apply(p, x, y, NULL, NULL, 0, 1e-5, stats, var, rstd, NULL, 2);
    if (what == 4) return bgn_moments(p, x, stats, var, 2);
    if (what == 5) return bgn_write(p, x, y, NULL, NULL, 0, stats, rstd, 2);
    if (what == 6) return bgn_products(p, x, x, NULL, 0, stats, rstd, sums, NULL, NULL, 2);
    if (what == 7) return bgn_write_gradient(p, x, x, y, NULL, 0, stats, rstd, sums, 2);
    return -1;
}

/* Every allocation fails once: that is reported, and nothing is left behind. */
static void check_failures(void) {
    for (int walk = SLICED; walk <= BY_ROWS; walk++) {
        const problem q = {.N = 2, .C = 5, .P = 20, .B = 1, .type = F32, .walk = walk,
                           .G = walk >= POSITIONAL ? 1 : 3};
        float *x = noisy(&q, F32, 200, 0, 1), *y = array(&q, F32, 200, 1);
        float *stats = noisy(&q, F32, 130, 9, 1);
        double *sums = noisy(&q, F64, 6, 0, 1);
        call_it(&q, "without memory");
        for (int what = 0; what < 8; what++) {
            for (long k = 0, failed = 1; failed == 1; k++) {
                if (what == 0) until_failure = k;
                bgn_plan *p = bgn_plan_new(q.N, q.C, q.P, q.B, q.G, q.whole, q.type, q.walk);
                if (what > 0) until_failure = k;
                failed = attempt(what, p, x, y, stats, sums);
                if (failed >= 0 && failed != (until_failure < 0))
                    fail("what is reported is not what happened");
                until_failure = -1;
                bgn_plan_free(p);
                if (alive) fail("memory was not freed");
            }
        }
        unfence(x), unfence(y), unfence(stats), unfence(sums);
    }
}

/* What makes no sense is refused. */
static void check_refusals(void) {
    const problem q = {.N = 2, .C = 6, .P = 5, .B = 1, .G = 4, .type = F32, .walk = SLICED};
    float *x = noisy(&q, F32, 60, 0, 1), *stats = array(&q, F32, 30, 1), *to = stats + 12;
    bgn_plan *p = bgn_plan_new(q.N, q.C, q.P, 1, q.G, 0, F32, SLICED);
    bgn_plan *pn = bgn_plan_new(q.N, q.C, q.P, 1, 1, 1, F32, POSITIONAL);
#define REFUSED(call) \
    if ((call) != 2) fail(#call)
#define FORWARD(y, mean, entries, momentum, renorm, act, threads)                              \
    bgn_forward(p, x, y, NULL, NULL, 0, 1e-5, stats, mean, mean, entries, momentum, NULL, renorm, \
                act, threads)
    REFUSED(FORWARD(NULL, to, 6, .1, NULL, NULL, 1));
    REFUSED(FORWARD(NULL, to, 4, -1, NULL, NULL, 1));
    const bgn_renorm narrow = {to, to, 4, .5, 1, to, to}, odd = {to, to, 5, 2, 1, to, to};
    REFUSED(FORWARD(to, NULL, 0, 0, &narrow, NULL, 1));
    REFUSED(FORWARD(to, NULL, 0, 0, &odd, NULL, 1));
    REFUSED(FORWARD(NULL, NULL, 0, 0, NULL, NULL, 0));
    const bgn_act relu = {.function = LEAKY}, silu = {.function = SILU};
    const bgn_act sum = {.function = SILU, .residual = x}, other = {.function = HARDSWISH + 1};
    REFUSED(FORWARD(NULL, NULL, 0, 0, NULL, &relu, 1)); /* nowhere to write */
    REFUSED(FORWARD(to, NULL, 0, 0, NULL, &sum, 1));
    REFUSED(FORWARD(to, NULL, 0, 0, NULL, &other, 1));
#define BACKWARD(frozen, act) \
    bgn_backward(p, x, x, to, NULL, 0, stats, to, NULL, NULL, frozen, NULL, act, 1)
    REFUSED(BACKWARD(0, &silu)); /* no memory for the inner gradient */
    REFUSED(BACKWARD(1, &relu)); /* nor for that, nor an output */
    const bgn_act lost = {.function = LEAKY, .inverted = 1, .y = x};
    REFUSED(BACKWARD(0, &lost)); /* a slope of 0 */
    REFUSED(bgn_moments(pn, x, stats, to, 1));
    REFUSED(bgn_write(pn, x, x, NULL, NULL, 0, stats, to, 1));
    REFUSED(bgn_products(pn, x, x, NULL, 0, stats, to, NULL, NULL, NULL, 1));
    REFUSED(bgn_write_gradient(pn, x, x, x, NULL, 0, stats, to, NULL, 1));
    bgn_plan_free(p), bgn_plan_free(pn), unfence(x), unfence(stats);
}

/* Whether bits are the number of a 16-bit type nearest to value, of two the even one; neither is
   NaN. Infinity stands for the power of two after the largest number. */
static int nearest(int type, uint16_t bits, double value) {
    const int infinity = type == F16 ? 0x7c00 : 0x7f80, found = bits & 0x7fff;
    const double beyond = ldexp(1, type == F16 ? 16 : 128), size = fmin(fabs(value), beyond);
    double off[3] = {INFINITY, INFINITY, INFINITY}; /* of the number before, this one, the next */
    if (found > infinity || (value != 0 && (value < 0) != bits >> 15)) return 0; /* -0 + 0 is 0 */
    for (int k = 0; k < 3; k++) {
        uint16_t near = (uint16_t)(found + k - 1);
        if (near < infinity) off[k] = fabs(get(type, &near, 0) - size);
        else if (near == infinity) off[k] = beyond - size;
    }
    double other = fmin(off[0], off[2]);
    return off[1] < other || (off[1] == other && found % 2 == 0);
}

/* Every number of a 16-bit type is read exactly, and what is written is the nearest one. */
static void check_halves(int type) {
    enum { ALL = 1 << 16 };
    const problem q = {.N = 1, .C = 1, .P = ALL, .B = 1, .G = 1, .whole = 1, .type = type};
    call_it(&q, "all numbers");
    uint16_t *x = array(&q, type, ALL, 1), *y = array(&q, type, ALL, 1);
    for (int i = 0; i < ALL; i++) x[i] = (uint16_t)i;
    bgn_plan *p = bgn_plan_new(q.N, q.C, q.P, q.B, q.G, q.whole, q.type, q.walk);
    for (int k = 0; k < 2; k++) {
        float mean = 0, var = 1, rstd, w = k ? 1.7f : 1;
        if (bgn_apply(p, x, y, &w, NULL, 0, 0, &mean, &var, &rstd, NULL, 1)) fail("apply");
        for (int i = 0; i < ALL; i++) {
            float exact = (float)get(type, x, i) * w;
            if (isnan(exact) ? isnan(get(type, y, i)) : nearest(type, y[i], exact)) continue;
            printf("%s: %#06x times %g is %#06x\n", name, i, w, y[i]);
            exit(1);
        }
    }
    bgn_plan_free(p), unfence(x), unfence(y);
}

/* The one body for every instruction set: each has the same cases. */
static void check_everything(const char *isa) {
    enum { CASES = 1000 };
    int cases[4][4] = {{0}}; /* by type and walk */
    seed = 1;
    for (int k = 0; k < CASES; k++) {
        problem q = drawn();
        call_it(&q, isa);
        check(&q);
        cases[q.type][q.walk]++;
    }
    for (int k = 0; k < 16; k++)
        if (!cases[k / 4][k % 4]) fail("a type and walk have no case");
    check_failures();
    check_refusals();
    check_halves(BF16), check_halves(F16);
    printf("%s: %d cases\n", isa, CASES);
}

int main(void) {
    static const char *const NAMES[] = {"base", "avx2", "avx512"};
    signal(SIGSEGV, crashed), signal(SIGBUS, crashed);
    for (int isa = BASE; isa <= AVX512; isa++)
        if (bgn_use(isa) == isa) check_everything(NAMES[isa]);
    return 0;
}
