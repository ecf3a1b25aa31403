// Adam's update of many parameters: see adam.py.

template <typename T, typename L> struct Row {
    T *p, *first, *second;
    L *copy;
    Index size;
};

template <typename T> struct Numbers {
    T mean, keep_mean, square, keep_square, eps, size, decay, keep, scale;
};

template <typename T>
__device__ __forceinline__ void update(T &p, T &first, T &second, T g, const Numbers<T> &n) {
    T d = g * n.scale + n.decay * p;
    first = n.keep_mean * first + n.mean * d;
    second = n.keep_square * second + n.square * (d * d);
    p = n.keep * p - n.size * (first / (square_root(second) + n.eps));
}

// T: parameters and averages, G: gradients, L: rounded copies of the parameters. `numbers` are used unless there are
// some on the device. `lost` is set to 1 if a rounded copy is infinite or NaN.
template <typename T, typename G, typename L>
__global__ void __launch_bounds__(256) adam(
    const Row<T, L> *rows, const Work *work, int first_row, Addresses gradients, Numbers<T> numbers,
    const Numbers<T> *on_device, double *lost
) {
    constexpr int N = 16 / sizeof(T), AT_ONCE = 2;  // packs whose loads are in flight together
    const Numbers<T> n = on_device ? *on_device : numbers;
    Work mine = work[blockIdx.x];
    Row<T, L> row = rows[mine.array];
    Index start = (Index)mine.piece * PIECE;
    int count = (int)min(row.size - start, (Index)PIECE), threads = blockDim.x;
    T *p = row.p + start, *first = row.first + start, *second = row.second + start;
    const G *g = (const G *)gradients.at[mine.array - first_row] + start;
    L *copy = row.copy ? row.copy + start : nullptr;
    bool fits = is_aligned<N>(p) && is_aligned<N>(first) && is_aligned<N>(second) && is_aligned<N>(g) &&
                is_aligned<N>(copy), is_lost_here = false;
    int packs = fits ? count / N : 0;
    for (int at = threadIdx.x; at < packs; at += AT_ONCE * threads) {
        Pack<T, N> ps[AT_ONCE], firsts[AT_ONCE], seconds[AT_ONCE];
        Pack<G, N> gs[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int pack = at + k * threads;
            if (pack >= packs) break;
            ps[k] = reinterpret_cast<const Pack<T, N> *>(p)[pack];
            gs[k] = reinterpret_cast<const Pack<G, N> *>(g)[pack];
            firsts[k] = reinterpret_cast<const Pack<T, N> *>(first)[pack];
            seconds[k] = reinterpret_cast<const Pack<T, N> *>(second)[pack];
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int pack = at + k * threads;
            if (pack >= packs) break;
#pragma unroll
            for (int i = 0; i < N; i++) {
                update<T>(ps[k].at[i], firsts[k].at[i], seconds[k].at[i], (T)wide(gs[k].at[i]), n);
            }
            reinterpret_cast<Pack<T, N> *>(p)[pack] = ps[k];
            reinterpret_cast<Pack<T, N> *>(first)[pack] = firsts[k];
            reinterpret_cast<Pack<T, N> *>(second)[pack] = seconds[k];
            if (!copy) continue;
            Wide<L> values[N];
#pragma unroll
            for (int i = 0; i < N; i++) values[i] = (Wide<L>)ps[k].at[i];
            Pack<L, N> copies = narrow_all<L>(values);
#pragma unroll
            for (int i = 0; i < N; i++) is_lost_here |= is_lost(wide(copies.at[i]));
            reinterpret_cast<Pack<L, N> *>(copy)[pack] = copies;
        }
    }
    for (int i = packs * N + threadIdx.x; i < count; i += threads) {
        T value = p[i], one = first[i], two = second[i];
        update<T>(value, one, two, (T)wide(g[i]), n);
        p[i] = value, first[i] = one, second[i] = two;
        if (!copy) continue;
        copy[i] = narrow<L>((Wide<L>)value);
        is_lost_here |= is_lost(wide(copy[i]));
    }
    if (lost && is_lost_here) *lost = 1;
}
