// The update of stochastic gradient descent, with or without momentum, of many parameters: see momentum.py.

template <typename T, typename L> struct Row {
    T *p, *velocity;
    L *copy;
    Index size;
};

template <typename T> struct Numbers {
    T rate, keep, share, decay, nesterov, scale;
};

// `velocity` is not used where `has_velocity` is false.
template <typename T>
__device__ __forceinline__ void update(T &p, T &velocity, T g, const Numbers<T> &n, bool has_velocity) {
    T d = g * n.scale + n.decay * p;
    if (has_velocity) {
        velocity = n.keep * velocity + n.share * d;
        d = n.nesterov != 0 ? d + n.keep * velocity : velocity;
    }
    p = p - n.rate * d;
}

// The types and the last arguments are those of `adam`.
template <typename T, typename G, typename L>
__global__ void __launch_bounds__(256) momentum(
    const Row<T, L> *rows, const Work *work, int first_row, Addresses gradients, Numbers<T> numbers,
    const Numbers<T> *on_device, double *lost
) {
    constexpr int N = 16 / sizeof(T), AT_ONCE = 2;
    const Numbers<T> n = on_device ? *on_device : numbers;
    Work mine = work[blockIdx.x];
    Row<T, L> row = rows[mine.array];
    Index start = (Index)mine.piece * PIECE;
    int count = (int)min(row.size - start, (Index)PIECE), threads = blockDim.x;
    T *p = row.p + start, *velocity = row.velocity ? row.velocity + start : nullptr;
    const G *g = (const G *)gradients.at[mine.array - first_row] + start;
    L *copy = row.copy ? row.copy + start : nullptr;
    bool fits = is_aligned<N>(p) && is_aligned<N>(velocity) && is_aligned<N>(g) && is_aligned<N>(copy);
    bool is_lost_here = false;
    int packs = fits ? count / N : 0;
    for (int at = threadIdx.x; at < packs; at += AT_ONCE * threads) {
        Pack<T, N> ps[AT_ONCE], velocities[AT_ONCE];
        Pack<G, N> gs[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int pack = at + k * threads;
            if (pack >= packs) break;
            ps[k] = reinterpret_cast<const Pack<T, N> *>(p)[pack];
            gs[k] = reinterpret_cast<const Pack<G, N> *>(g)[pack];
            if (velocity) velocities[k] = reinterpret_cast<const Pack<T, N> *>(velocity)[pack];
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int pack = at + k * threads;
            if (pack >= packs) break;
#pragma unroll
            for (int i = 0; i < N; i++) {
                update<T>(ps[k].at[i], velocities[k].at[i], (T)wide(gs[k].at[i]), n, velocity != nullptr);
            }
            reinterpret_cast<Pack<T, N> *>(p)[pack] = ps[k];
            if (velocity) reinterpret_cast<Pack<T, N> *>(velocity)[pack] = velocities[k];
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
        T value = p[i], v = velocity ? velocity[i] : 0;
        update<T>(value, v, (T)wide(g[i]), n, velocity != nullptr);
        p[i] = value;
        if (velocity) velocity[i] = v;
        if (!copy) continue;
        copy[i] = narrow<L>((Wide<L>)value);
        is_lost_here |= is_lost(wide(copy[i]));
    }
    if (lost && is_lost_here) *lost = 1;
}
