// Products of small matrices by the threads of a warp (tensor cores), and asynchronous copies to shared memory.
//
// A product c += a b has 16 rows, 8 columns and a depth of 16 elements of 16 bits, or of 8 wider ones. Each lane of the
// warp holds some elements of a, b and c, its fragments. With lane = 4 group + member:
//
//     c[i]            row group + 8 (i / 2), column 2 member + i % 2
//     depth 8   a[i]  row group + 8 (i % 2), column member + 4 (i / 2)
//               b[i]  row member + 4 i, column group
//     depth 16  a[i]  row group + 8 (i % 2), columns 2 member + 8 (i / 2) and the next
//               b[i]  rows 2 member + 8 i and the next, column group
//
// On the CPU the same functions read and write fragments of this form, so that a mistake in the use of one is seen.
// Source: PTX ISA, "Matrix Fragments for mma.m16n8k16", "mma.m16n8k8", "mma.m8n8k4" and "ldmatrix".

// -- the kinds of products --------------------------------------------------------------------------------------------

// Elements are Half, BFloat16, float or double. Tf32 is float in memory, rounded to a fraction of 10 bits (TF32) where
// it is multiplied. For float each element is split into two such numbers, and a product is the sum of three, which has
// almost the precision of float. Sums are float, or double for double.
struct Tf32 {};

template <typename P> struct Kind;
template <typename E, typename W, int D> struct KindOf {
    typedef E Element;
    typedef W Word;  // an element of a fragment; of 16 bits, two
    static constexpr int DEPTH = D;
};
template <> struct Kind<Half> : KindOf<Half, unsigned, 16> {};
template <> struct Kind<BFloat16> : KindOf<BFloat16, unsigned, 16> {};
template <> struct Kind<float> : KindOf<float, float, 8> {};
template <> struct Kind<Tf32> : KindOf<float, float, 8> {};
template <> struct Kind<double> : KindOf<double, double, 8> {};

template <typename P> using Element = typename Kind<P>::Element;
template <typename P> using Sum = Wide<Element<P>>;

template <typename P> struct Left {
    typename Kind<P>::Word at[4];
};
template <typename P> struct Right {
    typename Kind<P>::Word at[2];
};

// -- shared memory ----------------------------------------------------------------------------------------------------

#ifdef ON_CPU
typedef unsigned long long Address;
#else
typedef unsigned Address;
#endif

__device__ __forceinline__ Address shared_address(const void *x) {
#ifdef ON_CPU
    return (Address)x;
#else
    Address address;
    asm("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }" : "=r"(address) : "l"(x));
    return address;
#endif
}

// Starts a copy of SIZE bytes to shared memory, or of zeros. Both addresses are multiples of the size.
template <int SIZE> __device__ __forceinline__ void copy_async(Address to, const void *from, bool is_zero) {
#ifdef ON_CPU
    on_cpu::copy_async((void *)to, from, SIZE, is_zero);
#else
    if constexpr (SIZE == 16)
        asm volatile("{ .reg .pred zero; setp.ne.u32 zero, %2, 0; cp.async.cg.shared.global [%0], [%1], 16, zero; }" ::"r"(
                         to), "l"(from), "r"((unsigned)is_zero)
                     : "memory");
    else
        asm volatile("{ .reg .pred zero; setp.ne.u32 zero, %2, 0; cp.async.ca.shared.global [%0], [%1], %3, zero; }" ::"r"(
                         to), "l"(from), "r"((unsigned)is_zero), "n"(SIZE)
                     : "memory");
#endif
}

// Waits for the copies that this thread started. A barrier makes them known to the other threads.
__device__ __forceinline__ void wait_for_copies() {
#ifdef ON_CPU
    on_cpu::wait_for_copies();
#else
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Four matrices of 8 rows of 16 bytes, elements of 16 bits. Lane 8 m + r gives the address of row r of matrix m. x[m]
// holds the elements 2 member and the next of row `group` of matrix m; TRANSPOSED, of column `group`.
template <bool TRANSPOSED> __device__ __forceinline__ void load_matrices(unsigned (&x)[4], Address row) {
#ifdef ON_CPU
    struct Post {
        unsigned *x;
        const unsigned short *row;
    } post = {x, (const unsigned short *)row};
    on_cpu::together(&post, [](void **lanes) {
        for (int lane = 0; lane < 32; lane++)
            for (int m = 0; m < 4; m++) {
                unsigned pair = 0;
                for (int half = 0; half < 2; half++) {
                    int i = lane / 4, j = 2 * (lane % 4) + half;
                    const unsigned short *from = ((Post *)lanes[8 * m + (TRANSPOSED ? j : i)])->row;
                    if ((Address)from % 16) on_cpu::problem = "a row of a matrix at an unaligned address";
                    pair |= (unsigned)from[TRANSPOSED ? i : j] << 16 * half;
                }
                ((Post *)lanes[lane])->x[m] = pair;
            }
    });
#else
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(row)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(row)
                     : "memory");
#endif
}

__device__ __forceinline__ void load_word(float &x, Address at) {
#ifdef ON_CPU
    x = *(const float *)at;
#else
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
#endif
}

__device__ __forceinline__ void load_word(double &x, Address at) {
#ifdef ON_CPU
    x = *(const double *)at;
#else
    asm volatile("ld.shared.f64 %0, [%1];" : "=d"(x) : "r"(at) : "memory");
#endif
}

// -- fragments of a tile in shared memory -----------------------------------------------------------------------------

// Rows of a tile start STRIDE elements apart. A stride of 16 bytes more than a multiple of 128 avoids bank conflicts.
template <typename P, int STRIDE> __device__ __forceinline__ constexpr int bytes_to(int row, int column) {
    return (row * STRIDE + column) * (int)sizeof(Element<P>);
}

__device__ __forceinline__ void as_words(unsigned (&y)[4], const unsigned (&x)[4]) {
    for (int i = 0; i < 4; i++) y[i] = x[i];
}
__device__ __forceinline__ void as_words(float (&y)[4], const unsigned (&x)[4]) {
    for (int i = 0; i < 4; i++) y[i] = __uint_as_float(x[i]);
}

// a = 16 rows of the tile.
template <typename P, int STRIDE> __device__ __forceinline__ Left<P> load_left(Address tile) {
    int lane = threadIdx.x % 32;
    Left<P> a;
    if constexpr (sizeof(Element<P>) == 8) {
        Address at = tile + bytes_to<P, STRIDE>(lane / 4, lane % 4);
#pragma unroll
        for (int i = 0; i < 4; i++) load_word(a.at[i], at + bytes_to<P, STRIDE>(i % 2 * 8, i / 2 * 4));
    } else {
        unsigned x[4];
        load_matrices<false>(x, tile + bytes_to<P, STRIDE>(lane % 16, 0) + lane / 16 * 16);
        as_words(a.at, x);
    }
    return a;
}

// b[0] and b[1] = the transposes of rows 0 to 7 and 8 to 15 of the tile.
template <typename P, int STRIDE> __device__ __forceinline__ void load_right_transposed(Right<P> (&b)[2], Address tile) {
    int lane = threadIdx.x % 32;
    if constexpr (sizeof(Element<P>) == 8) {
        Address at = tile + bytes_to<P, STRIDE>(lane / 4, lane % 4);
#pragma unroll
        for (int i = 0; i < 4; i++) load_word(b[i / 2].at[i % 2], at + bytes_to<P, STRIDE>(i / 2 * 8, i % 2 * 4));
    } else {
        unsigned x[4];
        typename Kind<P>::Word y[4];
        load_matrices<false>(x, tile + bytes_to<P, STRIDE>(lane % 8 + lane / 16 * 8, 0) + lane / 8 % 2 * 16);
        as_words(y, x);
#pragma unroll
        for (int i = 0; i < 4; i++) b[i / 2].at[i % 2] = y[i];
    }
}

// b[0] and b[1] = columns 0 to 7 and 8 to 15 of the tile, for a product with `left_of`.
template <typename P, int STRIDE> __device__ __forceinline__ void load_right(Right<P> (&b)[2], Address tile) {
    int lane = threadIdx.x % 32;
    if constexpr (Kind<P>::DEPTH == 16) {
        unsigned x[4];
        load_matrices<true>(x, tile + bytes_to<P, STRIDE>(lane % 16, 0) + lane / 16 * 16);
#pragma unroll
        for (int i = 0; i < 4; i++) b[i / 2].at[i % 2] = x[i];
    } else {
        Address at = tile + bytes_to<P, STRIDE>(lane % 4 * 2, lane / 4);
#pragma unroll
        for (int i = 0; i < 4; i++) load_word(b[i / 2].at[i % 2], at + bytes_to<P, STRIDE>(i % 2, i / 2 * 8));
    }
}

// -- fragments of sums ------------------------------------------------------------------------------------------------

// a = DEPTH columns of sums, from n * 8 on. For a depth of 8 their order is 0, 2, 4, 6, 1, 3, 5, 7, which is the order in
// which `load_right` takes the rows of its tile: so no lane needs the sums of another.
template <typename P, int N> __device__ __forceinline__ Left<P> left_of(const Sum<P> (&c)[N][4], int n) {
    Left<P> a;
    if constexpr (Kind<P>::DEPTH == 16) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a.at[i] = packed(Element<P>(), c[n + i / 2][i % 2 * 2], c[n + i / 2][i % 2 * 2 + 1]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) a.at[i] = c[n][i % 2 * 2 + i / 2];
    }
    return a;
}

// -- products ---------------------------------------------------------------------------------------------------------

#ifdef ON_CPU
inline float of_word(Half, unsigned word, int half) { return half_to_float(word >> 16 * half); }
inline float of_word(BFloat16, unsigned word, int half) { return __uint_as_float(word >> 16 * half << 16); }
inline float of_word(Tf32, float word, int) { return __uint_as_float(__float_as_uint(word) & 0xffffe000u); }
inline double of_word(double, double word, int) { return word; }

template <typename P> void multiply_on_cpu(Sum<P> (&c)[4], const Left<P> &a, const Right<P> &b) {
    struct Post {
        Sum<P> *c;
        const Left<P> *a;
        const Right<P> *b;
    } post = {c, &a, &b};
    on_cpu::together(&post, [](void **lanes) {
        constexpr int DEPTH = Kind<P>::DEPTH, PER_WORD = DEPTH / 8;
        Sum<P> left[16][DEPTH], right[DEPTH][8];
        for (int lane = 0; lane < 32; lane++) {
            Post *p = (Post *)lanes[lane];
            int group = lane / 4, member = lane % 4;
            for (int half = 0; half < PER_WORD; half++) {
                for (int i = 0; i < 4; i++)
                    left[group + 8 * (i % 2)][PER_WORD * (member + 4 * (i / 2)) + half] = of_word(P(), p->a->at[i], half);
                for (int i = 0; i < 2; i++)
                    right[PER_WORD * (member + 4 * i) + half][group] = of_word(P(), p->b->at[i], half);
            }
        }
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++) {
                int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
                Sum<P> sum = 0;
                for (int k = 0; k < DEPTH; k++) sum += left[row][k] * right[k][column];
                ((Post *)lanes[lane])->c[i] += sum;
            }
    });
}
#endif

__device__ __forceinline__ void multiply(float (&c)[4], const Left<Half> &a, const Right<Half> &b) {
#ifdef ON_CPU
    multiply_on_cpu(c, a, b);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[0]), "r"(b.at[1]));
#endif
}

__device__ __forceinline__ void multiply(float (&c)[4], const Left<BFloat16> &a, const Right<BFloat16> &b) {
#ifdef ON_CPU
    multiply_on_cpu(c, a, b);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[0]), "r"(b.at[1]));
#endif
}

// c += a b for elements that are TF32 already.
__device__ __forceinline__ void multiply_tf32(float (&c)[4], const Left<Tf32> &a, const Right<Tf32> &b) {
#ifdef ON_CPU
    multiply_on_cpu(c, a, b);
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(__float_as_uint(a.at[0])), "r"(__float_as_uint(a.at[1])), "r"(__float_as_uint(a.at[2])),
          "r"(__float_as_uint(a.at[3])), "r"(__float_as_uint(b.at[0])), "r"(__float_as_uint(b.at[1])));
#endif
}

// To nearest, ties away from zero.
__device__ __forceinline__ float round_to_tf32(float x) {
#ifdef ON_CPU
    return x != x ? x : __uint_as_float((__float_as_uint(x) + 0x1000) & 0xffffe000u);
#else
    unsigned y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return __uint_as_float(y);
#endif
}

template <int N> __device__ __forceinline__ void split(const float (&x)[N], float (&high)[N], float (&low)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        high[i] = round_to_tf32(x[i]);
        low[i] = round_to_tf32(x[i] - high[i]);
    }
}

__device__ __forceinline__ void multiply(float (&c)[4], const Left<Tf32> &a, const Right<Tf32> &b) {
    Left<Tf32> x;
    Right<Tf32> y;
#pragma unroll
    for (int i = 0; i < 4; i++) x.at[i] = round_to_tf32(a.at[i]);
#pragma unroll
    for (int i = 0; i < 2; i++) y.at[i] = round_to_tf32(b.at[i]);
    multiply_tf32(c, x, y);
}

__device__ __forceinline__ void multiply(float (&c)[4], const Left<float> &a, const Right<float> &b) {
    Left<Tf32> high, low;
    Right<Tf32> top, rest;
    split(a.at, high.at, low.at);
    split(b.at, top.at, rest.at);
    multiply_tf32(c, low, top);
    multiply_tf32(c, high, rest);
    multiply_tf32(c, high, top);
}

__device__ __forceinline__ void multiply(double (&c)[4], const Left<double> &a, const Right<double> &b) {
#ifdef ON_CPU
    multiply_on_cpu(c, a, b);
#else
    // the instruction has 8 rows and a depth of 4
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+d"(c[i % 2 * 2]), "+d"(c[i % 2 * 2 + 1])
            : "d"(a.at[i]), "d"(b.at[i / 2]));
#endif
}

// -- products of tiles by one warp ------------------------------------------------------------------------------------

// c += x y', for 16 M rows x and 8 N rows y of tiles with DEPTH columns.
template <typename P, int DEPTH, int STRIDE, int M, int N>
__device__ __forceinline__ void add_product_transposed(Sum<P> (&c)[M][N][4], Address x, Address y) {
#pragma unroll
    for (int k = 0; k < DEPTH; k += Kind<P>::DEPTH) {
        Left<P> a[M];
#pragma unroll
        for (int m = 0; m < M; m++) a[m] = load_left<P, STRIDE>(x + bytes_to<P, STRIDE>(16 * m, k));
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            Right<P> b[2];
            load_right_transposed<P, STRIDE>(b, y + bytes_to<P, STRIDE>(8 * n, k));
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply(c[m][n], a[m], b[0]);
                multiply(c[m][n + 1], a[m], b[1]);
            }
        }
    }
}

// c += p y, for sums p of 16 M rows, and a tile y with 8 N columns.
template <typename P, int STRIDE, int M, int D, int N>
__device__ __forceinline__ void add_product(Sum<P> (&c)[M][N][4], const Sum<P> (&p)[M][D][4], Address y) {
#pragma unroll
    for (int k = 0; k < 8 * D; k += Kind<P>::DEPTH) {
        Left<P> a[M];
#pragma unroll
        for (int m = 0; m < M; m++) a[m] = left_of<P, D>(p[m], k / 8);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            Right<P> b[2];
            load_right<P, STRIDE>(b, y + bytes_to<P, STRIDE>(k, 8 * n));
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply(c[m][n], a[m], b[0]);
                multiply(c[m][n + 1], a[m], b[1]);
            }
        }
    }
}
