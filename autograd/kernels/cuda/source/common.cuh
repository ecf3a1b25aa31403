// Types and functions that all kernels share. They need no header, so that NVRTC compiles them without the CUDA toolkit.
// ON_CPU is defined where a program is compiled for the CPU, by the header of the tests.

typedef long long Index;

// -- numbers of 16 bits: stored so, computed in float -----------------------------------------------------------------

struct alignas(2) Half {
    unsigned short bits;
};

struct alignas(2) BFloat16 {
    unsigned short bits;
};

__device__ __forceinline__ float wide(float x) { return x; }
__device__ __forceinline__ double wide(double x) { return x; }

__device__ __forceinline__ float wide(Half x) {
#ifdef ON_CPU
    return half_to_float(x.bits);
#else
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#endif
}

__device__ __forceinline__ float wide(BFloat16 x) {
    return __uint_as_float((unsigned)x.bits << 16);
}

// Rounding to nearest, ties to even.
template <typename T> struct Narrow;

template <> struct Narrow<float> {
    typedef float Wide;
    __device__ static __forceinline__ float of(float x) { return x; }
};

template <> struct Narrow<double> {
    typedef double Wide;
    __device__ static __forceinline__ double of(double x) { return x; }
};

template <> struct Narrow<Half> {
    typedef float Wide;
    __device__ static __forceinline__ Half of(float x) {
        Half y;
#ifdef ON_CPU
        y.bits = float_to_half(x);
#else
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#endif
        return y;
    }
};

template <> struct Narrow<BFloat16> {
    typedef float Wide;
    __device__ static __forceinline__ BFloat16 of(float x) {
        BFloat16 y;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
        unsigned bits = __float_as_uint(x);
        // a NaN stays one: rounding could carry its bits into the exponent
        y.bits = x != x ? (unsigned short)0x7fff : (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
        return y;
    }
};

template <typename T> using Wide = typename Narrow<T>::Wide;
template <typename T> __device__ __forceinline__ T narrow(Wide<T> x) { return Narrow<T>::of(x); }

// -- elements that are read and written together ----------------------------------------------------------------------

// N elements in one access of up to 16 bytes. The address must be a multiple of the size.
template <typename T, int N> struct alignas(sizeof(T) * N) Pack {
    T at[N];
};

// Two numbers rounded to 16 bits by one instruction, the first in the lower half.
__device__ __forceinline__ unsigned packed(Half, float low, float high) {
    unsigned both;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#else
    both = narrow<Half>(low).bits | (unsigned)narrow<Half>(high).bits << 16;
#endif
    return both;
}
__device__ __forceinline__ unsigned packed(BFloat16, float low, float high) {
    unsigned both;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#else
    both = narrow<BFloat16>(low).bits | (unsigned)narrow<BFloat16>(high).bits << 16;
#endif
    return both;
}

// All numbers of a pack, rounded: those of 16 bits in pairs.
template <typename T, int N> __device__ __forceinline__ Pack<T, N> narrow_all(const Wide<T> (&x)[N]) {
    Pack<T, N> y;
    if constexpr (sizeof(T) == 2 && N % 2 == 0) {
        union {
            Pack<T, N> numbers;
            unsigned pairs[N / 2];
        } both;
#pragma unroll
        for (int i = 0; i < N / 2; i++) both.pairs[i] = packed(T{}, x[2 * i], x[2 * i + 1]);
        y = both.numbers;
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) y.at[i] = narrow<T>(x[i]);
    }
    return y;
}

// -- functions of both widths -----------------------------------------------------------------------------------------

__device__ __forceinline__ float exponential(float x) { return __expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float logarithm(float x) { return logf(x); }
__device__ __forceinline__ double logarithm(double x) { return log(x); }
__device__ __forceinline__ float inverse_root(float x) { return rsqrtf(x); }
__device__ __forceinline__ double inverse_root(double x) { return 1.0 / sqrt(x); }
__device__ __forceinline__ float square_root(float x) { return sqrtf(x); }
__device__ __forceinline__ double square_root(double x) { return sqrt(x); }
__device__ __forceinline__ float larger(float x, float y) { return fmaxf(x, y); }
__device__ __forceinline__ double larger(double x, double y) { return fmax(x, y); }

// -- sums and maxima over a warp and a block --------------------------------------------------------------------------

struct Add {
    template <typename T> __device__ __forceinline__ T operator()(T x, T y) const { return x + y; }
};

struct Max {
    template <typename T> __device__ __forceinline__ T operator()(T x, T y) const { return larger(x, y); }
};

// All lanes get the result. `width` is a power of two: the number of neighbouring lanes that share one.
template <int width = 32, typename T, typename F> __device__ __forceinline__ T over_warp(T x, F combine) {
#pragma unroll
    for (int step = width / 2; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(0xffffffffu, x, step, 32));
    return x;
}

// All threads of a block get the result. `scratch` has one element per warp, and can be used again after the next
// barrier. Blocks have whole warps.
template <typename T, typename F> __device__ __forceinline__ T over_block(T x, T *scratch, F combine) {
    x = over_warp(x, combine);
    int warps = blockDim.x / 32;
    if (warps == 1) return x;
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    x = scratch[0];
    for (int warp = 1; warp < warps; warp++) x = combine(x, scratch[warp]);
    return x;
}

// -- many arrays in one launch ----------------------------------------------------------------------------------------

// Each block works on one piece of one array: see batch.py, which has the same two numbers.
constexpr int PIECE = 8192, MOST_ADDRESSES = 440;

struct Work {
    int array, piece;
};

// Addresses that differ from launch to launch. They are passed by value: a kernel takes 4 KiB of arguments.
struct Addresses {
    unsigned long long at[MOST_ADDRESSES];
};

// Whether N elements can be read from an address at once, or it is null.
template <int N, typename T> __device__ __forceinline__ bool is_aligned(const T *x) {
    return (unsigned long long)x % (sizeof(T) * N) == 0;
}

// Infinite or NaN.
template <typename T> __device__ __forceinline__ bool is_lost(T x) { return x - x != 0; }

// -- shared memory whose size is given at launch -----------------------------------------------------------------------

#ifdef ON_CPU
#define DYNAMIC_SHARED(name) unsigned char *name = on_cpu::dynamic_shared
#else
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif
