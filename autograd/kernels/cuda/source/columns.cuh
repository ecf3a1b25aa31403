// Sums over the rows of a matrix, in two stages without atomics, so that they are the same in every run: each block adds up
// a group of rows, and `sums_of_groups` adds up the groups.

// The sums over the rows of threads of a block, in their order, for columns of which a thread has N: element i of thread
// x is ``sums[i * blockDim.x + x]``. All threads of the block take part, and see the sums.
template <int N, typename W> __device__ __forceinline__ void add_in_turn(W *sums, const W (&own)[N]) {
    for (int turn = 0; turn < blockDim.y; turn++) {
        if (threadIdx.y == turn)
#pragma unroll
            for (int i = 0; i < N; i++) {
                W &sum = sums[i * blockDim.x + threadIdx.x];
                sum = turn ? sum + own[i] : own[i];
            }
        __syncthreads();
    }
}

// `first` is the sum of parts[:, 0], and `second`, where gridDim.y is 2, that of parts[:, 1]. A block is (32, 8), and has 32
// columns.
template <typename T>
__global__ void __launch_bounds__(256)
sums_of_groups(const Wide<T> *parts, T *first, T *second, int groups, int width) {
    __shared__ Wide<T> sums[8][32];
    int column = blockIdx.x * 32 + threadIdx.x, kinds = gridDim.y, kind = blockIdx.y;
    Wide<T> sum = 0;
    if (column < width)
#pragma unroll 8
        for (int group = threadIdx.y; group < groups; group += 8)
            sum += parts[((Index)group * kinds + kind) * width + column];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= width) return;
    for (int i = 1; i < 8; i++) sum += sums[i][threadIdx.x];
    (kind ? second : first)[column] = narrow<T>(sum);
}
