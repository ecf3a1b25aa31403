// Sums of squares of many arrays, in a fixed order, and in the same pass the arrays times a number: see squares.py.

// One block: the sum over its piece, in double precision, and whether an element is infinite or NaN. Where an output is
// given, it is written too. The addresses are pairs of an input and an output; both may be the same array.
template <typename T, typename U>
__global__ void __launch_bounds__(256) squares(
    const Index *sizes, const Work *work, int first_row, Addresses arrays, double scale, const double *on_device,
    double *sums
) {
    constexpr int N = 16 / sizeof(T) < 16 / sizeof(U) ? 16 / sizeof(T) : 16 / sizeof(U), AT_ONCE = 2;
    __shared__ double scratch[8];
    typedef Wide<U> W;
    const W factor = (W)(on_device ? *on_device : scale);
    Work mine = work[blockIdx.x];
    Index start = (Index)mine.piece * PIECE;
    int count = (int)min(sizes[mine.array] - start, (Index)PIECE), threads = blockDim.x;
    const T *x = (const T *)arrays.at[2 * (mine.array - first_row)] + start;
    U *y = (U *)arrays.at[2 * (mine.array - first_row) + 1];
    if (y) y += start;
    int packs = is_aligned<N>(x) && is_aligned<N>(y) ? count / N : 0;
    double sum = 0, lost = 0;
    for (int at = threadIdx.x; at < packs; at += AT_ONCE * threads) {
        Pack<T, N> xs[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int pack = at + k * threads;
            if (pack < packs) xs[k] = reinterpret_cast<const Pack<T, N> *>(x)[pack];
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int pack = at + k * threads;
            if (pack >= packs) break;
            W ys[N];
#pragma unroll
            for (int i = 0; i < N; i++) {
                W v = (W)wide(xs[k].at[i]) * factor;
                sum += (double)v * (double)v;
                if (is_lost(v)) lost = 1;
                ys[i] = v;
            }
            if (y) reinterpret_cast<Pack<U, N> *>(y)[pack] = narrow_all<U>(ys);
        }
    }
    for (int i = packs * N + threadIdx.x; i < count; i += threads) {
        W v = (W)wide(x[i]) * factor;
        sum += (double)v * (double)v;
        if (is_lost(v)) lost = 1;
        if (y) y[i] = narrow<U>(v);
    }
    if (!sums) return;
    sum = over_block(sum, scratch, Add());
    __syncthreads();
    lost = over_block(lost, scratch, Max());
    if (threadIdx.x == 0) {
        sums[2 * blockIdx.x] = sum;
        sums[2 * blockIdx.x + 1] = lost;
    }
}

// One block adds the sums of all blocks. Each thread adds those of its own number in order.
__global__ void total(const double *sums, Index count, double *out) {
    __shared__ double scratch[32];
    double sum = 0, lost = 0;
#pragma unroll 4
    for (Index i = threadIdx.x; i < count; i += blockDim.x) {
        sum += sums[2 * i];
        lost = larger(lost, sums[2 * i + 1]);
    }
    sum = over_block(sum, scratch, Add());
    __syncthreads();
    lost = over_block(lost, scratch, Max());
    if (threadIdx.x == 0) {
        out[0] = sum;
        out[1] = lost;
    }
}
