// Numbers on the device that are set from arguments: see values.py.

template <int N> struct Bytes {
    unsigned char at[N];
};

template <int N> __global__ void store(unsigned char *out, Bytes<N> values, int count) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = values.at[i];
}
