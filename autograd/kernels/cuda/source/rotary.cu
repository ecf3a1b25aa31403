// Rotary position embedding: a pair (a, b) becomes (a cos - b sin, a sin + b cos). Backward has the opposite sign of sin.
//
// The rows of x have 2 `half` elements, and the rows of the tables `half`. Rows are [again, outer, repeats, inner], and the
// tables [outer, inner]: they are read again from the caches. `period` is outer * repeats * inner. Each thread rotates N
// pairs.
template <typename T>
__global__ void __launch_bounds__(256)
rotary(const T *xs, const T *cosines, const T *sines, T *ys, Index rows, int half, Index period, Index repeats,
       Index inner,
       int is_interleaved, int sign) {
    constexpr int N = 16 / sizeof(T);
    typedef Pack<T, N> Packed;
    Index index = (Index)blockIdx.x * blockDim.y + threadIdx.y;
    if (index >= rows) return;
    Index at = rows > period ? index % period : index, table = at % inner;
    if (period > inner * repeats) table += at / (inner * repeats) * inner;
    const T *x = xs + index * 2 * half, *cosine = cosines + table * half, *sine = sines + table * half;
    T *y = ys + index * 2 * half;
    bool is_aligned = half % N == 0 && ((unsigned long long)x | (unsigned long long)y | (unsigned long long)cosine |
                                        (unsigned long long)sine) % 16 == 0;
    for (int from = threadIdx.x * N; from < half; from += blockDim.x * N) {
        int count = min(N, half - from);
        auto place = [&](int e) { return is_interleaved ? 2 * from + e : e < N ? from + e : half + from + e - N; };
        auto has = [&](int e) { return is_interleaved ? e < 2 * count : e % N < count; };
        Packed v[2], c, s;
        if (is_aligned) {
            v[0] = *reinterpret_cast<const Packed *>(x + place(0));
            v[1] = *reinterpret_cast<const Packed *>(x + place(N));
            c = *reinterpret_cast<const Packed *>(cosine + from);
            s = *reinterpret_cast<const Packed *>(sine + from);
        } else {
            for (int e = 0; e < 2 * N; e++)
                if (has(e)) v[e / N].at[e % N] = x[place(e)];
            for (int i = 0; i < count; i++) c.at[i] = cosine[from + i], s.at[i] = sine[from + i];
        }
        Wide<T> turned[2][N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            T first = is_interleaved ? v[2 * i / N].at[2 * i % N] : v[0].at[i];
            T second = is_interleaved ? v[(2 * i + 1) / N].at[(2 * i + 1) % N] : v[1].at[i];
            Wide<T> a = wide(first), b = wide(second), cos = wide(c.at[i]), sin = sign * wide(s.at[i]);
            (is_interleaved ? turned[2 * i / N][2 * i % N] : turned[0][i]) = a * cos - b * sin;
            (is_interleaved ? turned[(2 * i + 1) / N][(2 * i + 1) % N] : turned[1][i]) = a * sin + b * cos;
        }
        v[0] = narrow_all<T>(turned[0]), v[1] = narrow_all<T>(turned[1]);
        if (is_aligned) {
            *reinterpret_cast<Packed *>(y + place(0)) = v[0];
            *reinterpret_cast<Packed *>(y + place(N)) = v[1];
        } else {
            for (int e = 0; e < 2 * N; e++)
                if (has(e)) y[place(e)] = v[e / N].at[e % N];
        }
    }
}
