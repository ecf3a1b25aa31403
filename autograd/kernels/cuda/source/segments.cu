// Sums of the rows that have the same place, of rows that are sorted by place: see segments.py.
//
// The sorted rows are divided into chunks of one length. A chunk writes the sums of the segments that lie within it, and
// keeps those of the segments that begin before it and that go on after it, in `parts`: [chunks][head, tail][columns].
// A second kernel adds up the parts of each segment in their order. So there are no atomics, and a place that all rows
// have takes no longer than places that are all different.

constexpr int CHUNK = 32;

// A block is (packs of columns, chunks). `order` has the rows in the order of their places.
template <typename T, int N, typename Place>
__global__ void __launch_bounds__(256)
sum_chunks(const T *__restrict__ xs, const Index *__restrict__ order, const Place *__restrict__ places, T *__restrict__ out,
           Wide<T> *__restrict__ parts, Index rows, Index packs) {
    typedef Pack<T, N> Packed;
    constexpr int AT_ONCE = 4;
    Index chunk = (Index)blockIdx.x * blockDim.y + threadIdx.y, first = chunk * CHUNK;
    Index pack = (Index)blockIdx.y * blockDim.x + threadIdx.x;
    if (first >= rows || pack >= packs) return;
    Index end = min(first + CHUNK, rows);
    Place place = places[first];
    bool is_head = first > 0 && places[first - 1] == place;
    Wide<T> sum[N] = {};
    auto keep = [&](int part) {
        Wide<T> *into = parts + ((chunk * 2 + part) * packs + pack) * N;
#pragma unroll
        for (int i = 0; i < N; i++) into[i] = sum[i];
    };
    auto write = [&]() {
        reinterpret_cast<Packed *>(out)[(Index)place * packs + pack] = narrow_all<T>(sum);
    };
    for (Index at = first; at < end; at += AT_ONCE) {
        Packed found[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (at + u < end) found[u] = reinterpret_cast<const Packed *>(xs)[order[at + u] * packs + pack];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (at + u >= end) continue;
            Place next = places[at + u];
            if (next != place) {
                if (is_head) keep(0);
                else write();
                place = next, is_head = false;
#pragma unroll
                for (int i = 0; i < N; i++) sum[i] = 0;
            }
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] += wide(found[u].at[i]);
        }
    }
    if (is_head) keep(0);
    else if (end < rows && places[end] == place) keep(1);
    else write();
}

// The sum of the segment that begins in chunk blockIdx.x and goes on after it, if there is one. A block is (32, 8).
template <typename T, int N, typename Place>
__global__ void __launch_bounds__(256)
join_chunks(const Place *__restrict__ places, const Wide<T> *__restrict__ parts, T *__restrict__ out, Index rows,
            Index packs) {
    __shared__ Wide<T> sums[8][32 * N];
    Index chunk = blockIdx.x, first = chunk * CHUNK, next = first + CHUNK, chunks = (rows + CHUNK - 1) / CHUNK;
    Index pack = (Index)blockIdx.y * 32 + threadIdx.x;
    Place place = places[next - 1];
    if (places[next] != place) return;                                                    // it ends here
    if (first > 0 && places[first - 1] == place && places[first] == place) return;        // it began before
    Index last = chunk + 1, beyond = chunks;  // the last chunk whose first row has the place
    while (last + 1 < beyond) {
        Index middle = (last + beyond) / 2;
        if (places[middle * CHUNK] == place) last = middle;
        else beyond = middle;
    }
    Wide<T> sum[N] = {};
    if (pack < packs) {
        auto add = [&](Index of, int part) {
            const Wide<T> *from = parts + ((of * 2 + part) * packs + pack) * N;
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] += from[i];
        };
        if (threadIdx.y == 0) add(chunk, 1);
#pragma unroll 4
        for (Index of = chunk + 1 + threadIdx.y; of <= last; of += 8) add(of, 0);
    }
#pragma unroll
    for (int i = 0; i < N; i++) sums[threadIdx.y][i * 32 + threadIdx.x] = sum[i];
    __syncthreads();
    if (threadIdx.y > 0 || pack >= packs) return;
#pragma unroll
    for (int i = 0; i < N; i++)
        for (int turn = 1; turn < 8; turn++) sum[i] += sums[turn][i * 32 + threadIdx.x];
    reinterpret_cast<Pack<T, N> *>(out)[(Index)place * packs + pack] = narrow_all<T>(sum);
}
