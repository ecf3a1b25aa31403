// Random numbers of the streams of `autograd.random`, bitwise those of the host, and dropout by them.
//
// Element i of a logical tensor uses word i of its stream. Block n of four words is Philox4x64-10 of the counter n + 1
// (the counter of numpy.random.Philox is advanced before it is used). Source: Salmon et al. 2011 (Parallel random
// numbers: as easy as 1, 2, 3).
//
// The 20 products of 128 bits of a block of words are most of the work. So dropout keeps one bit per element for
// backward, which then runs at the memory's bandwidth.

typedef unsigned long long Word;

__device__ __forceinline__ void write_words(Word counter, Word key0, Word key1, Word *words) {
    Word c0 = counter + 1, c1 = 0, c2 = 0, c3 = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const Word m0 = 0xD2E7470EE14C6C93ull, m1 = 0xCA5A826395121157ull;
        Word high0 = __umul64hi(m0, c0), low0 = m0 * c0, high1 = __umul64hi(m1, c2), low1 = m1 * c2;
        c0 = high1 ^ c1 ^ key0, c1 = low1, c2 = high0 ^ c3 ^ key1, c3 = low0;
        key0 += 0x9E3779B97F4A7C15ull, key1 += 0xBB67AE8584CAA73Bull;
    }
    words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

// The places of an array's elements [outer, inner, run] in the array and in the stream. A thread has eight elements of a
// run, that is two blocks of words; the first and the last of a run may have fewer.
struct Places {
    Index outer, inner, run, start, outer_step, inner_step;      // in the array
    Index word, outer_words, inner_words;                        // in the stream
};

struct Chunk {
    Index at, word;    // of the first of the eight: it may be before the run
    int first, end;    // those that are in the run

    __device__ __forceinline__ Chunk(const Places &p, Index item) {
        Index chunks = (p.run + 10) / 8, row = 0, from = item;
        at = p.start, word = p.word;
        if (p.outer * p.inner > 1) {
            row = item / chunks, from = item - row * chunks;
            Index i = row / p.inner, j = row - i * p.inner;
            at += i * p.outer_step + j * p.inner_step;
            word += i * p.outer_words + j * p.inner_words;
        }
        Index skipped = from * 8 - (word & 3), left = p.run - skipped;
        at += skipped, word += skipped;
        first = skipped < 0 ? (int)-skipped : 0;
        end = left < 8 ? (int)left : 8;
    }

    __device__ __forceinline__ bool is_whole() const { return first == 0 && end == 8; }
    __device__ __forceinline__ bool has(int i) const { return i >= first && i < end; }
    __device__ __forceinline__ void write(Word key0, Word key1, Word *words) const {
        write_words((Word)word / 4, key0, key1, words);
        write_words((Word)word / 4 + 1, key0, key1, words + 4);
    }
};

__device__ __forceinline__ Index items(const Places &p) { return p.outer * p.inner * ((p.run + 10) / 8); }

#define PLACES                                                                                                        \
    Index outer, Index inner, Index run, Index start, Index outer_step, Index inner_step, Index word,                \
        Index outer_words, Index inner_words
#define GIVEN_PLACES {outer, inner, run, start, outer_step, inner_step, word, outer_words, inner_words}

// y is x times `scale` where the word's upper 53 bits are below `limit`, else x times 0, as on the host. `bits` has a byte
// per chunk. It is written, unless null; or, where `is_drawn`, it is read and no words are made.
template <typename T>
__global__ void __launch_bounds__(256)
dropout(const T *x, T *y, unsigned char *bits, int is_drawn, Word key0, Word key1, Word limit, double scale, PLACES) {
    constexpr int N = 16 / sizeof(T);
    typedef Pack<T, N> Packed;
    Places places = GIVEN_PLACES;
    Wide<T> factor = (Wide<T>)scale;
    for (Index item = (Index)blockIdx.x * blockDim.x + threadIdx.x; item < items(places);
         item += (Index)gridDim.x * blockDim.x) {
        Chunk chunk(places, item);
        const T *from = x + chunk.at;
        T *to = y + chunk.at;
        bool is_pack = chunk.is_whole() && ((unsigned long long)from | (unsigned long long)to) % 16 == 0;
        Packed values[8 / N];
        if (is_pack)
#pragma unroll
            for (int i = 0; i < 8 / N; i++) values[i] = reinterpret_cast<const Packed *>(from)[i];
        unsigned kept = 0;
        if (is_drawn) {
            kept = bits[item];
        } else {
            Word words[8];
            chunk.write(key0, key1, words);
#pragma unroll
            for (int i = 0; i < 8; i++) kept |= (unsigned)(words[i] >> 11 < limit) << i;
            if (bits) bits[item] = (unsigned char)kept;
        }
        if (is_pack) {
#pragma unroll
            for (int i = 0; i < 8 / N; i++) {
                Wide<T> found[N];
#pragma unroll
                for (int k = 0; k < N; k++) found[k] = wide(values[i].at[k]) * (kept >> (i * N + k) & 1 ? factor : 0);
                reinterpret_cast<Packed *>(to)[i] = narrow_all<T>(found);
            }
        } else {
            for (int i = chunk.first; i < chunk.end; i++) to[i] = narrow<T>(wide(from[i]) * (kept >> i & 1 ? factor : 0));
        }
    }
}

// -- numbers ------------------------------------------------------------------------------------------------------------
//
// The functions that round each operation once, as IEEE 754 says: a compiler may not fuse them. The host computes the
// same operations, so that the numbers are bitwise the same.

__device__ __forceinline__ double add(double x, double y) { return __dadd_rn(x, y); }
__device__ __forceinline__ double times(double x, double y) { return __dmul_rn(x, y); }

__device__ __forceinline__ double polynomial(const double *c, int n, double x) {
    double y = times(x, c[0]);
#pragma unroll
    for (int i = 1; i < n; i++) y = add(i > 1 ? times(y, x) : y, c[i]);
    return y;
}

__device__ __forceinline__ double rational(const double *above, const double *below, double x) {
    return __ddiv_rn(polynomial(above, 8, x), polynomial(below, 8, x));
}

// -log(p) for a normal number p: `random.normal_quantile`.
__device__ __forceinline__ double minus_log(double p) {
    const double series[12] = {2.0 / 23, 2.0 / 21, 2.0 / 19, 2.0 / 17, 2.0 / 15, 2.0 / 13,
                               2.0 / 11, 2.0 / 9,  2.0 / 7,  2.0 / 5,  2.0 / 3,  2.0};
    long long bits = __double_as_longlong(p);
    int exponent = (int)(bits >> 52) - 1022;
    double m = __longlong_as_double((bits & 0x000fffffffffffffll) | 0x3fe0000000000000ll);
    bool is_low = m < 0.70710678118654757;
    if (is_low) m = 2 * m;
    double z = __ddiv_rn(add(m, -1.0), add(m, 1.0));
    double part = times(z, polynomial(series, 12, times(z, z)));
    return add(times((double)((int)is_low - exponent), 0.69314718055994529), -part);
}

// The normal quantile at 1/2 + q, given 1/2 - |q|. Source: Wichura 1988 (Algorithm AS 241), PPND16.
__device__ __forceinline__ double quantile(double q, double tail) {
    const double centre[2][8] = {
        {2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
         1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0},
        {5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
         5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0}};
    const double near[2][8] = {
        {7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0,
         3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0},
        {1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
         6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0}};
    const double far[2][8] = {
        {2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
         2.96560571828504891230e-1, 1.78482653991729133580e0, 5.46378491116411436990e0, 6.65790464350110377720e0},
        {2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
         1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0}};
    double r = add(0.180625, -times(q, q));
    if (!(r < 0)) return times(q, rational(centre[0], centre[1], r));
    r = __dsqrt_rn(minus_log(tail));
    double z = r > 5.0 ? rational(far[0], far[1], add(r, -5.0)) : rational(near[0], near[1], add(r, -1.6));
    return q < 0 ? -z : z;
}

// A number of the element type, rounded once.
__device__ __forceinline__ void round_to(double x, double &y) { y = x; }
__device__ __forceinline__ void round_to(double x, float &y) { y = (float)x; }
__device__ __forceinline__ void round_to(double x, Half &y) {
#ifdef ON_CPU
    y.bits = double_to_half(x);
#else
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(y.bits) : "d"(x));
#endif
}

enum Kind { UNIFORM, NORMAL, TRUNCATED_NORMAL };

// uniform: a word times `scale`, plus `shift`, at most `high`; normal: a standard normal number times `scale` plus `shift`;
// truncated normal: that of a probability, `width` times a uniform number plus `start`, from `low` to `high`.
template <typename T>
__device__ __forceinline__ void number(Word word, int kind, double scale, double shift, double low, double high,
                                       double width, double start, T &out) {
    const double unit = 1.0 / 9007199254740992.0;  // 2^-53
    double x;
    if (kind == UNIFORM) {
        round_to(add(times((double)(word >> 11), scale), shift), out);
        if ((double)wide(out) > high) round_to(high, out);
        return;
    }
    if (kind == NORMAL) {
        double s = add((double)((long long)word >> 11), 0.5);
        x = quantile(times(s, unit), times(add(4503599627370496.0, -fabs(s)), unit));
    } else {
        double p = add(times(add((double)(word >> 11), 0.5), width), start);
        p = fmin(fmax(p, unit / 2), 1 - unit);
        x = quantile(add(p, -0.5), fmin(p, add(1.0, -p)));
    }
    x = add(times(x, scale), shift);
    if (kind == TRUNCATED_NORMAL) x = fmin(fmax(x, low), high);
    round_to(x, out);
}

// The upper 64 bits of the word times `count`, plus `low`. A count of 0 is 2^64.
struct Whole {
    Word count, low;
    __device__ __forceinline__ void operator()(Word word, long long &out) const {
        out = (long long)((count ? __umul64hi(word, count) : word) + low);
    }
};

// Whether the upper 53 bits of the word are below `limit`.
struct Below {
    Word limit;
    __device__ __forceinline__ void operator()(Word word, bool &out) const { out = word >> 11 < limit; }
};

struct Real {
    int kind;
    double scale, shift, low, high, width, start;
    template <typename T> __device__ __forceinline__ void operator()(Word word, T &out) const {
        number(word, kind, scale, shift, low, high, width, start, out);
    }
};

template <typename T, typename F>
__device__ __forceinline__ void fill(T *out, const F &make, Word key0, Word key1, const Places &places) {
    for (Index item = (Index)blockIdx.x * blockDim.x + threadIdx.x; item < items(places);
         item += (Index)gridDim.x * blockDim.x) {
        Chunk chunk(places, item);
        Word words[8];
        chunk.write(key0, key1, words);
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (chunk.has(i)) make(words[i], out[chunk.at + i]);
    }
}

template <typename T>
__global__ void __launch_bounds__(256)
real_numbers(T *out, int kind, double scale, double shift, double low, double high, double width, double begin, Word key0,
             Word key1, PLACES) {
    fill(out, Real{kind, scale, shift, low, high, width, begin}, key0, key1, Places GIVEN_PLACES);
}

__global__ void __launch_bounds__(256) integers(long long *out, Word count, Word low, Word key0, Word key1, PLACES) {
    fill(out, Whole{count, low}, key0, key1, Places GIVEN_PLACES);
}

__global__ void __launch_bounds__(256) booleans(bool *out, Word limit, Word key0, Word key1, PLACES) {
    fill(out, Below{limit}, key0, key1, Places GIVEN_PLACES);
}
