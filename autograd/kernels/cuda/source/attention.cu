// Scaled dot-product attention in tiles: the scores exist in registers only.
//
// Operands are [batch, heads, rows, width] with any strides of the first three dimensions. A tile of some rows of a head
// is held in shared memory with the width W, a multiple of 16; columns beyond the operand's width are zeros. Each warp
// computes 16 M rows of the scores of one tile with another, and uses them as they are for the next product. While it
// does, the tiles of the next step are copied to a second buffer.
//
// With S the scores times `scale`, L the logarithms of their exponentials' sums, and D the row sums of ct * O minus the
// cotangents of L,
//
//     P = exp(S - L),  O = P V,  dV = P' ct,  dS = P * (ct V' - D),  dQ = scale dS K,  dK = scale dS' Q.
//
// dQ is computed by blocks of queries, dK and dV by blocks of keys: S is computed in both, nothing is added by atomics,
// and so the results are the same each time.
//
// Sources: Dao et al. 2022 (FlashAttention), sections 3.1 and B; Dao 2023 (FlashAttention-2), section 3; Milakov and
// Gimelshein 2018 (the running maximum).

__device__ __forceinline__ float power_of_two(float x) {
#ifdef ON_CPU
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}
__device__ __forceinline__ double power_of_two(double x) { return exp2(x); }

#define LOG2_E 1.4426950408889634
#define LN_2 0.6931471805599453

template <typename N> __device__ __forceinline__ N infinity() { return (N)__int_as_float(0x7f800000); }

enum Mask { NONE, BOOLEANS, ADDENDS };

// The rows of one head.
template <typename E> struct Rows {
    E *at;
    Index stride;
    int count, width;
};

// Starts to load a tile of rows to shared memory. Rows whose addresses and widths are multiples of 16 bytes are copied
// asynchronously.
template <int ROWS, int W, int THREADS, typename E>
__device__ __forceinline__ void load(unsigned char *tile, const Rows<const E> &x, int first) {
    constexpr int CHUNK = 16 / sizeof(E), STRIDE = W + CHUNK, PER_ROW = W / CHUNK, TOGETHER = THREADS / PER_ROW;
    static_assert(TOGETHER > 0, "a row needs more threads");
    int thread = threadIdx.x;
#ifndef ON_CPU
    asm volatile("" : "+r"(thread));  // computed again in each step: registers are scarce
#endif
    if (((Index)x.at | (x.stride | x.width) * (Index)sizeof(E)) % 16 != 0) {
#pragma unroll 1
        for (int i = thread; i < ROWS * W; i += THREADS) {
            int row = i / W, column = i % W;
            bool is_inside = first + row < x.count && column < x.width;
            ((E *)tile)[row * STRIDE + column] = is_inside ? x.at[(first + row) * x.stride + column] : E();
        }
        return;
    }
    int row = thread / PER_ROW, column = thread % PER_ROW * CHUNK;
    if (row >= TOGETHER) return;
    int count = column < x.width ? x.count : 0;
    const E *from = x.at + (first + row) * x.stride + column;
    Address to = shared_address(tile) + (row * STRIDE + column) * (int)sizeof(E);
#pragma unroll
    for (int step = 0; step < ROWS; step += TOGETHER) {
        if (ROWS % TOGETHER != 0 && step + row >= ROWS) break;
        copy_async<16>(to + step * STRIDE * (int)sizeof(E), from, first + row + step >= count);
        from += TOGETHER * x.stride;
    }
}

// Writes sums times factors of their rows. `first` is the first row of this warp.
template <typename P, int M, int D>
__device__ __forceinline__ void store(const Rows<Element<P>> &y, int first, const Sum<P> (&c)[M][D][4],
                                      const Sum<P> (&factors)[M][2]) {
    typedef Element<P> E;
    int group = threadIdx.x % 32 / 4, member = threadIdx.x % 4;
    bool has_pairs = ((Index)y.at | y.stride * (Index)sizeof(E)) % (2 * sizeof(E)) == 0;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = first + 16 * m + 8 * half + group;
            if (row >= y.count) continue;
            E *to = y.at + row * y.stride + 2 * member;
#pragma unroll
            for (int n = 0; n < D; n++) {
                Wide<E> both[2];
#pragma unroll
                for (int i = 0; i < 2; i++) both[i] = c[m][n][2 * half + i] * factors[m][half];
                Pack<E, 2> pair = narrow_all<E>(both);
                int left = y.width - 8 * n - 2 * member;
                if (has_pairs && left > 1) {
                    *reinterpret_cast<Pack<E, 2> *>(to + 8 * n) = pair;
                } else {
                    if (left > 0) to[8 * n] = pair.at[0];
                    if (left > 1) to[8 * n + 1] = pair.at[1];
                }
            }
        }
}

template <typename N, int M, int D> __device__ __forceinline__ void clear(N (&c)[M][D][4]) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < D; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) c[m][n][i] = 0;
}

// The scores of one head: which are -inf, and what is added. `reach` is the number of the last key that query 0 attends
// to: with causal attention the number of keys minus that of queries, else all keys.
template <typename P, int MASK> struct Scores {
    typedef Sum<P> N;
    int queries, keys, reach;
    N scale;
    const void *mask;
    Index mask_query, mask_key;

    // exp(score) = 2 ** (s * factor()), with s as `prepare` leaves it. The factor is positive, so that the largest s is
    // the largest score.
    __device__ bool is_scaled() const { return MASK == ADDENDS || !(scale > 0); }
    __device__ N factor() const { return (is_scaled() ? (N)1 : scale) * (N)LOG2_E; }

    // Scores of queries and keys from `query` and `key` on, 16 M rows by 8 D columns. Rows are queries; TRANSPOSED, keys.
    template <bool TRANSPOSED, int M, int D>
    __device__ __forceinline__ void prepare(N (&s)[M][D][4], int query, int key) const {
        constexpr int KEYS = TRANSPOSED ? 16 * M : 8 * D;
        if (MASK == NONE && !is_scaled() && key + KEYS <= keys && key + KEYS - 1 <= query + reach) return;
        int group = threadIdx.x % 32 / 4, member = threadIdx.x % 4;
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < D; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int row = 16 * m + group + 8 * (i / 2), column = 8 * n + 2 * member + i % 2;
                    s[m][n][i] = of(s[m][n][i], query + (TRANSPOSED ? column : row), key + (TRANSPOSED ? row : column));
                }
    }

    __device__ __forceinline__ N of(N s, int query, int key) const {
        if (key > min(keys - 1, query + reach)) return -infinity<N>();
        if (is_scaled()) s *= scale;
        if (MASK != NONE && query < queries) {
            Index at = query * mask_query + key * mask_key;
            if constexpr (MASK == BOOLEANS) s = ((const bool *)mask)[at] ? s : -infinity<N>();
            if constexpr (MASK == ADDENDS) s += wide(((const Element<P> *)mask)[at]);
        }
        return s;
    }

    // The number of first keys that some of the queries before `end` attend to.
    __device__ int seen(int end) const { return max(0, min(keys, min(end, queries) + reach)); }
};

// Each block computes ROWS rows of the output of one head, from its last rows on: with causal attention they take the
// longest.
template <typename P, int W, int ROWS, int KEYS, int WARPS, int BLOCKS, int MASK>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    attend(const Element<P> *q, const Element<P> *k, const Element<P> *v, const void *mask, Element<P> *out,
           Sum<P> *log_sums, Index q_batch, Index q_head, Index q_row, Index k_batch, Index k_head, Index k_row,
           Index v_batch, Index v_head, Index v_row, Index mask_batch, Index mask_head, Index mask_row,
           Index mask_column, Index out_batch, Index out_head, Index out_row, int heads, int group, int queries,
           int keys, int width, int value_width, int reach, Sum<P> scale) {
    typedef Element<P> E;
    typedef Sum<P> N;
    constexpr int STRIDE = W + 16 / sizeof(E), THREADS = 32 * WARPS, M = ROWS / (16 * WARPS);
    static_assert(ROWS == 16 * WARPS * M && KEYS % 16 == 0 && W % 16 == 0, "tiles consist of fragments");
    DYNAMIC_SHARED(memory);
    constexpr int ROW = STRIDE * sizeof(E), STAGE = 2 * KEYS * ROW;  // bytes
    unsigned char *stages = memory + ROWS * ROW;

    int blocks = (queries + ROWS - 1) / ROWS;
    int block = blocks - 1 - blockIdx.x % blocks, head = blockIdx.x / blocks % heads, batch = blockIdx.x / blocks / heads;
    int first = block * ROWS, mine = first + threadIdx.x / 32 * 16 * M;  // the first row of the block, of the warp
    Rows<const E> x = {k + batch * k_batch + head / group * k_head, k_row, keys, width};
    Rows<const E> y = {v + batch * v_batch + head / group * v_head, v_row, keys, value_width};
    Scores<P, MASK> scores = {queries, keys, reach, scale, mask, mask_row, mask_column};
    if constexpr (MASK != NONE)
        scores.mask = (const char *)mask +
                      (batch * mask_batch + head * mask_head) * (Index)(MASK == BOOLEANS ? 1 : sizeof(E));
    N factor = scores.factor();

    load<ROWS, W, THREADS>(memory, Rows<const E>{q + batch * q_batch + head * q_head, q_row, queries, width}, first);
    int steps = (scores.seen(first + ROWS) + KEYS - 1) / KEYS;
    if (steps > 0) {
        load<KEYS, W, THREADS>(stages, x, 0);
        load<KEYS, W, THREADS>(stages + KEYS * ROW, y, 0);
    }

    N o[M][W / 8][4], tops[M][2], sums[M][2];  // sums of this lane's columns, until the end
    clear(o);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) tops[m][half] = -infinity<N>(), sums[m][half] = 0;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        wait_for_copies();
        __syncthreads();
        if (step + 1 < steps) {
            unsigned char *next = stages + (step + 1) % 2 * STAGE;
            load<KEYS, W, THREADS>(next, x, (step + 1) * KEYS);
            load<KEYS, W, THREADS>(next + KEYS * ROW, y, (step + 1) * KEYS);
        }
        if (mine >= queries || step * KEYS >= scores.seen(mine + 16 * M)) continue;  // keys after this warp's rows

        Address q_tile = shared_address(memory) + (mine - first) * ROW;
        Address k_tile = shared_address(stages) + step % 2 * STAGE, v_tile = k_tile + KEYS * ROW;
        N s[M][KEYS / 8][4];
        clear(s);
        add_product_transposed<P, W, STRIDE>(s, q_tile, k_tile);
        scores.template prepare<false>(s, mine, step * KEYS);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                N top = tops[m][half];
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++) top = larger(top, larger(s[m][n][2 * half], s[m][n][2 * half + 1]));
                top = over_warp<4>(top, Max());
                N shift = top == -infinity<N>() ? (N)0 : top * factor;
                N rescale = power_of_two(tops[m][half] * factor - shift), sum = 0;
                tops[m][half] = top;
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int i = 2 * half; i < 2 * half + 2; i++) {
                        s[m][n][i] = power_of_two(s[m][n][i] * factor - shift);
                        sum += s[m][n][i];
                    }
                sums[m][half] = sums[m][half] * rescale + sum;
#pragma unroll
                for (int n = 0; n < W / 8; n++) {
                    o[m][n][2 * half] *= rescale;
                    o[m][n][2 * half + 1] *= rescale;
                }
            }
        add_product<P, STRIDE>(o, s, v_tile);
    }

    wait_for_copies();  // without any step
    N inverses[M][2];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            N sum = over_warp<4>(sums[m][half], Add());
            inverses[m][half] = sum == 0 ? (N)0 : 1 / sum;
            int row = mine + 16 * m + 8 * half + threadIdx.x % 32 / 4;
            if (log_sums && threadIdx.x % 4 == 0 && row < queries)
                log_sums[((Index)batch * heads + head) * queries + row] =
                    sum == 0 ? -infinity<N>() : tops[m][half] * factor * (N)LN_2 + logarithm(sum);
        }
    store<P>(Rows<E>{out + batch * out_batch + head * out_head, out_row, queries, value_width}, mine, o, inverses);
}

// For the rows of all heads, what both kernels below read: L in units of log 2, +inf instead of -inf, which makes P
// zero; and D, of which `dots` are given where `out` is not. Each warp computes one row at a time.
template <typename E>
__global__ void row_terms(const E *ct, const E *out, const Wide<E> *dots, const Wide<E> *log_sums, Wide<E> *l, Wide<E> *d,
                          Index ct_batch, Index ct_head, Index ct_row, Index out_batch, Index out_head, Index out_row,
                          Index rows, int heads, int queries, int width) {
    typedef Wide<E> N;
    int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (Index at = (Index)blockIdx.x * warps + threadIdx.x / 32; at < rows; at += (Index)gridDim.x * warps) {
        Index row = at % queries, head = at / queries % heads, batch = at / queries / heads;
        N sum = 0;
        if (out) {
            const E *x = ct + batch * ct_batch + head * ct_head + row * ct_row;
            const E *y = out + batch * out_batch + head * out_head + row * out_row;
            for (int i = lane; i < width; i += 32) sum += wide(x[i]) * wide(y[i]);
            sum = over_warp(sum, Add());
        }
        if (lane == 0) {
            N log_sum = log_sums[at];
            l[at] = log_sum == -infinity<N>() ? infinity<N>() : log_sum * (N)LOG2_E;
            d[at] = out ? sum : dots[at];
        }
    }
}

// dQ. Each block computes ROWS rows of one head.
template <typename P, int W, int ROWS, int KEYS, int WARPS, int BLOCKS, int MASK>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    attend_queries(const Element<P> *ct, const Element<P> *q, const Element<P> *k, const Element<P> *v,
                   const void *mask, const Sum<P> *l, const Sum<P> *d, Element<P> *dq, Index ct_batch, Index ct_head,
                   Index ct_row, Index q_batch, Index q_head, Index q_row, Index k_batch, Index k_head, Index k_row,
                   Index v_batch, Index v_head, Index v_row, Index mask_batch, Index mask_head, Index mask_row,
                   Index mask_column, Index dq_batch, Index dq_head, Index dq_row, int heads, int group, int queries,
                   int keys, int width, int value_width, int reach, Sum<P> scale) {
    typedef Element<P> E;
    typedef Sum<P> N;
    constexpr int STRIDE = W + 16 / sizeof(E), THREADS = 32 * WARPS, M = ROWS / (16 * WARPS);
    static_assert(ROWS == 16 * WARPS * M && KEYS % 16 == 0 && W % 16 == 0, "tiles consist of fragments");
    DYNAMIC_SHARED(memory);
    constexpr int ROW = STRIDE * sizeof(E), STAGE = 2 * KEYS * ROW;
    unsigned char *stages = memory + 2 * ROWS * ROW;

    int blocks = (queries + ROWS - 1) / ROWS;
    int block = blocks - 1 - blockIdx.x % blocks, head = blockIdx.x / blocks % heads, batch = blockIdx.x / blocks / heads;
    int first = block * ROWS, mine = first + threadIdx.x / 32 * 16 * M;
    Rows<const E> x = {k + batch * k_batch + head / group * k_head, k_row, keys, width};
    Rows<const E> y = {v + batch * v_batch + head / group * v_head, v_row, keys, value_width};
    Scores<P, MASK> scores = {queries, keys, reach, scale, mask, mask_row, mask_column};
    if constexpr (MASK != NONE)
        scores.mask = (const char *)mask +
                      (batch * mask_batch + head * mask_head) * (Index)(MASK == BOOLEANS ? 1 : sizeof(E));
    N factor = scores.factor();

    load<ROWS, W, THREADS>(memory, Rows<const E>{q + batch * q_batch + head * q_head, q_row, queries, width}, first);
    load<ROWS, W, THREADS>(memory + ROWS * ROW,
                           Rows<const E>{ct + batch * ct_batch + head * ct_head, ct_row, queries, value_width}, first);
    int steps = (scores.seen(first + ROWS) + KEYS - 1) / KEYS;
    if (steps > 0) {
        load<KEYS, W, THREADS>(stages, x, 0);
        load<KEYS, W, THREADS>(stages + KEYS * ROW, y, 0);
    }

    N sums[M][W / 8][4], row_l[M][2], row_d[M][2], factors[M][2];
    clear(sums);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = mine + 16 * m + 8 * half + threadIdx.x % 32 / 4;
            Index at = ((Index)batch * heads + head) * queries + row;
            row_l[m][half] = row < queries ? l[at] : infinity<N>();
            row_d[m][half] = row < queries ? d[at] : (N)0;
            factors[m][half] = scale;
        }
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        wait_for_copies();
        __syncthreads();
        if (step + 1 < steps) {
            unsigned char *next = stages + (step + 1) % 2 * STAGE;
            load<KEYS, W, THREADS>(next, x, (step + 1) * KEYS);
            load<KEYS, W, THREADS>(next + KEYS * ROW, y, (step + 1) * KEYS);
        }
        if (mine >= queries || step * KEYS >= scores.seen(mine + 16 * M)) continue;

        Address q_tile = shared_address(memory) + (mine - first) * ROW, ct_tile = q_tile + ROWS * ROW;
        Address k_tile = shared_address(stages) + step % 2 * STAGE, v_tile = k_tile + KEYS * ROW;
        N s[M][KEYS / 8][4], ds[M][KEYS / 8][4];
        clear(s);
        add_product_transposed<P, W, STRIDE>(s, q_tile, k_tile);
        scores.template prepare<false>(s, mine, step * KEYS);
        clear(ds);
        add_product_transposed<P, W, STRIDE>(ds, ct_tile, v_tile);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    ds[m][n][i] = power_of_two(s[m][n][i] * factor - row_l[m][i / 2]) * (ds[m][n][i] - row_d[m][i / 2]);
        add_product<P, STRIDE>(sums, ds, k_tile);
    }
    wait_for_copies();
    store<P>(Rows<E>{dq + batch * dq_batch + head * dq_head, dq_row, queries, width}, mine, sums, factors);
}

// dK and dV, each unless its address is null: PARTS is 1 for dK, 2 for dV, 3 for both. Each block computes KEYS rows of
// one head of keys, summed over the `group` query heads that share it.
template <typename P, int W, int ROWS, int KEYS, int WARPS, int BLOCKS, int MASK, int PARTS>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    attend_keys(const Element<P> *ct, const Element<P> *q, const Element<P> *k, const Element<P> *v, const void *mask,
                const Sum<P> *l, const Sum<P> *d, Element<P> *dk, Element<P> *dv, Index ct_batch, Index ct_head,
                Index ct_row, Index q_batch, Index q_head, Index q_row, Index k_batch, Index k_head, Index k_row,
                Index v_batch, Index v_head, Index v_row, Index mask_batch, Index mask_head, Index mask_row,
                Index mask_column, Index dk_batch, Index dk_head, Index dk_row, Index dv_batch, Index dv_head,
                Index dv_row, int heads, int group, int queries, int keys, int width, int value_width, int reach,
                Sum<P> scale) {
    typedef Element<P> E;
    typedef Sum<P> N;
    constexpr int STRIDE = W + 16 / sizeof(E), THREADS = 32 * WARPS, M = KEYS / (16 * WARPS);
    constexpr bool HAS_DK = PARTS & 1, HAS_DV = PARTS & 2;
    static_assert(KEYS == 16 * WARPS * M && ROWS % 16 == 0 && W % 16 == 0, "tiles consist of fragments");
    static_assert(ROWS <= THREADS, "each row's terms are copied by one thread");
    if (!(HAS_DK && dk) && !(HAS_DV && dv)) return;
    DYNAMIC_SHARED(memory);
    constexpr int ROW = STRIDE * sizeof(E), STAGE = 2 * ROWS * (ROW + sizeof(N));
    unsigned char *stages = memory + 2 * KEYS * ROW;

    int blocks = (keys + KEYS - 1) / KEYS, own = heads / group;
    int block = blockIdx.x % blocks, key_head = blockIdx.x / blocks % own, batch = blockIdx.x / blocks / own;
    int first = block * KEYS, mine = first + threadIdx.x / 32 * 16 * M;
    Scores<P, MASK> scores = {queries, keys, reach, scale, mask, mask_row, mask_column};
    N factor = scores.factor();

    load<KEYS, W, THREADS>(memory, Rows<const E>{k + batch * k_batch + key_head * k_head, k_row, keys, width}, first);
    if (HAS_DK)
        load<KEYS, W, THREADS>(memory + KEYS * ROW,
                               Rows<const E>{v + batch * v_batch + key_head * v_head, v_row, keys, value_width}, first);
    // the first tile with a query that attends to a key of this block
    int start = max(0, first - reach) / ROWS, tiles = max(0, (queries + ROWS - 1) / ROWS - start), steps = tiles * group;
    auto begin = [&](int step) {
        unsigned char *next = stages + step % 2 * STAGE;
        int head = key_head * group + step / tiles, from = (start + step % tiles) * ROWS, row = threadIdx.x;
        load<ROWS, W, THREADS>(next, Rows<const E>{q + batch * q_batch + head * q_head, q_row, queries, width}, from);
        load<ROWS, W, THREADS>(next + ROWS * ROW,
                               Rows<const E>{ct + batch * ct_batch + head * ct_head, ct_row, queries, value_width}, from);
        if (row < ROWS) {
            Index at = ((Index)batch * heads + head) * queries + min(from + row, queries - 1);
            Address to = shared_address(next) + 2 * ROWS * ROW + row * (int)sizeof(N);
            copy_async<sizeof(N)>(to, l + at, from + row >= queries);
            copy_async<sizeof(N)>(to + ROWS * (int)sizeof(N), d + at, from + row >= queries);
        }
    };
    if (steps > 0) begin(0);

    N dk_sums[M][HAS_DK ? W / 8 : 1][4], dv_sums[M][HAS_DV ? W / 8 : 1][4], ones[M][2], factors[M][2];
    clear(dk_sums);
    clear(dv_sums);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) ones[m][half] = 1, factors[m][half] = scale;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        wait_for_copies();
        __syncthreads();
        if (step + 1 < steps) begin(step + 1);
        int query = (start + step % tiles) * ROWS;
        if (mine >= scores.seen(query + ROWS)) continue;  // keys after these queries, or after the last
        Address k_tile = shared_address(memory) + (mine - first) * ROW, v_tile = k_tile + KEYS * ROW;
        Address q_tile = shared_address(stages) + step % 2 * STAGE, ct_tile = q_tile + ROWS * ROW;
        const Pack<N, 2> *row_l = (const Pack<N, 2> *)(stages + step % 2 * STAGE + 2 * ROWS * ROW) + threadIdx.x % 4;
        const Pack<N, 2> *row_d = row_l + ROWS / 2;
        if constexpr (MASK != NONE)
            scores.mask = (const char *)mask + (batch * mask_batch + (key_head * group + step / tiles) * mask_head) *
                                                   (Index)(MASK == BOOLEANS ? 1 : sizeof(E));

        N p[M][ROWS / 8][4];
        clear(p);
        add_product_transposed<P, W, STRIDE>(p, k_tile, q_tile);
        scores.template prepare<true>(p, query, mine);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) p[m][n][i] = power_of_two(p[m][n][i] * factor - row_l[4 * n].at[i % 2]);
        if (HAS_DV && dv) add_product<P, STRIDE>(dv_sums, p, ct_tile);
        if (HAS_DK && dk) {
            N ds[M][ROWS / 8][4];
            clear(ds);
            add_product_transposed<P, W, STRIDE>(ds, v_tile, ct_tile);
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) ds[m][n][i] = p[m][n][i] * (ds[m][n][i] - row_d[4 * n].at[i % 2]);
            add_product<P, STRIDE>(dk_sums, ds, q_tile);
        }
    }
    wait_for_copies();
    if (HAS_DK && dk)
        store<P>(Rows<E>{dk + batch * dk_batch + key_head * dk_head, dk_row, keys, width}, mine, dk_sums, factors);
    if (HAS_DV && dv)
        store<P>(Rows<E>{dv + batch * dv_batch + key_head * dv_head, dv_row, keys, value_width}, mine, dv_sums, ones);
}
