// A stand-in for NCCL: up to eight ranks of one host, which share memory. Calls run in the order of their stream, and wait
// there for the other ranks. Different calls of the ranks are an error, where NCCL would hang or compute nonsense.
#include "libraries.h"
#include "device.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <fcntl.h>
#include <random>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

enum Result { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
enum Operation { SUM = 0, PRODUCT = 1, MAXIMUM = 2, MINIMUM = 3, AVERAGE = 4 };
constexpr int MOST = 8;
constexpr size_t CHUNK = size_t(1) << 20; // bytes of a rank's memory in a step, and of a message in a part

struct Call { // what must be equal on all ranks
    int kind, type, operation, root;
    uint64_t count;
};
struct Shared { // memory of all ranks
    std::atomic<int> attached, aborted, arrived, round;
    int devices[MOST];
    Call calls[MOST];
    std::atomic<int> is_full[MOST][MOST]; // the messages from a rank to another
    char chunks[MOST][CHUNK], messages[MOST][MOST][CHUNK];
};
struct Communicator {
    Shared* shared;
    int ranks, rank, device;
    std::atomic<int> error{SUCCESS};
    std::string name;
};

// ncclDataType_t: int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16
static int size_of(int type) { return (const int[]){1, 1, 4, 4, 8, 8, 2, 4, 8, 2}[type]; }
template <class T> static T combined(T a, T b, int operation) {
    return T(operation == PRODUCT ? a * b : operation == MAXIMUM ? std::max(a, b) : operation == MINIMUM ? std::min(a, b) : a + b);
}
template <class T> static void combine(void* into, const void* x, size_t n, int operation) {
    for (size_t i = 0; i < n; i++) ((T*)into)[i] = combined(((T*)into)[i], ((const T*)x)[i], operation);
}
static void combine_any(void* into, const void* x, size_t n, int type, int operation) {
    switch (type) {
    case 0: return combine<int8_t>(into, x, n, operation);
    case 1: return combine<uint8_t>(into, x, n, operation);
    case 2: return combine<int32_t>(into, x, n, operation);
    case 3: return combine<uint32_t>(into, x, n, operation);
    case 4: return combine<int64_t>(into, x, n, operation);
    case 5: return combine<uint64_t>(into, x, n, operation);
    case 7: return combine<float>(into, x, n, operation);
    case 8: return combine<double>(into, x, n, operation);
    }
    int half = type == 6 ? F16 : BF16;
    for (size_t i = 0; i < n; i++) set_number(into, i, half, combined(number_at(into, i, half).real(), number_at(x, i, half).real(), operation));
}

static void wait(Communicator& c, const std::function<bool()>& is_done) {
    auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    bool is_late = false;
    device::poll([&] { return is_done() || c.shared->aborted || (is_late = std::chrono::steady_clock::now() > end); });
    if (c.shared->aborted) throw std::runtime_error("NCCL: the communicator was aborted");
    if (is_late) throw std::runtime_error("NCCL: another rank does not come");
}
static void barrier(Communicator& c) {
    Shared& s = *c.shared;
    int round = s.round;
    if (++s.arrived == c.ranks) {
        s.arrived = 0;
        s.round++;
    } else {
        wait(c, [&] { return s.round != round; });
    }
}
static void require_equal_calls(Communicator& c, const Call& call) {
    c.shared->calls[c.rank] = call;
    barrier(c);
    for (int r = 0; r < c.ranks; r++)
        if (memcmp(&c.shared->calls[r], &call, sizeof call)) {
            c.error = INVALID_USAGE;
            throw std::runtime_error("NCCL: rank " + std::to_string(r) + " makes another call than rank " + std::to_string(c.rank));
        }
    barrier(c);
}

// Every rank shows `given` bytes, chunk by chunk, and takes from those of all.
static void exchange(Communicator& c, const char* from, size_t given, const std::function<void(size_t at, size_t n)>& take) {
    for (size_t at = 0; at < given; at += CHUNK) {
        size_t n = std::min(CHUNK, given - at);
        if (from) memcpy(c.shared->chunks[c.rank], from + at, n);
        barrier(c);
        take(at, n);
        barrier(c);
    }
}

enum Kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST };
static void run(Communicator& c, Call call, const char* from, char* to) {
    require_equal_calls(c, call);
    int size = size_of(call.type);
    size_t bytes = call.count * size;
    Shared& s = *c.shared;
    bool is_root = c.rank == call.root;
    switch (call.kind) {
    case BROADCAST:
        return exchange(c, is_root ? from : nullptr, bytes, [&](size_t at, size_t n) { memcpy(to + at, s.chunks[call.root], n); });
    case ALL_GATHER:
        return exchange(c, from, bytes, [&](size_t at, size_t n) {
            for (int r = 0; r < c.ranks; r++) memcpy(to + r * bytes + at, s.chunks[r], n);
        });
    default: break;
    }
    bool scatters = call.kind == REDUCE_SCATTER, takes_all = call.kind == ALL_REDUCE || (call.kind == REDUCE && is_root);
    size_t total = scatters ? bytes * c.ranks : bytes;
    std::vector<char> sum(CHUNK);
    exchange(c, from, total, [&](size_t at, size_t n) {
        memcpy(sum.data(), s.chunks[0], n);
        for (int r = 1; r < c.ranks; r++) combine_any(sum.data(), s.chunks[r], n / size, call.type, call.operation);
        size_t begin = scatters ? std::max(at, c.rank * bytes) : at, end = scatters ? std::min(at + n, (c.rank + 1) * bytes) : at + n;
        if ((scatters && begin < end) || takes_all) memcpy(to + (scatters ? begin - c.rank * bytes : at), sum.data() + (begin - at), end - begin);
    });
}

// Messages between two ranks. Those of a group go on together.
struct Message {
    Communicator* c;
    int peer;
    bool is_sent;
    char* at;
    size_t left;
    void* stream;
};
static bool proceed(Message& m) { // a part of the message, if the other rank is ready
    Shared& s = *m.c->shared;
    int from = m.is_sent ? m.c->rank : m.peer, to = m.is_sent ? m.peer : m.c->rank;
    auto& is_full = s.is_full[from][to];
    if (bool(is_full) == m.is_sent) return false;
    size_t n = std::min(CHUNK, m.left);
    m.is_sent ? memcpy(s.messages[from][to], m.at, n) : memcpy(m.at, s.messages[from][to], n);
    is_full = m.is_sent;
    m.at += n;
    m.left -= n;
    return true;
}
static void run_messages(std::vector<Message> all) {
    auto is_done = [&] {
        bool is = true;
        for (size_t i = 0; i < all.size(); i++) {
            bool is_first = true; // of the messages between these two, in the order of the calls
            for (size_t k = 0; k < i; k++) is_first &= !(all[k].left && all[k].peer == all[i].peer && all[k].is_sent == all[i].is_sent);
            if (all[i].left && is_first) proceed(all[i]);
            is &= !all[i].left;
        }
        return is;
    };
    wait(*all[0].c, is_done);
}

static thread_local int groups = 0;
static thread_local std::vector<Message> messages;
static thread_local std::vector<std::function<int()>> calls;

static int submit_messages() {
    std::vector<Message> all;
    all.swap(messages);
    if (all.empty()) return SUCCESS;
    return in_order(all[0].stream, [=] { run_messages(all); }) ? INVALID_USAGE : SUCCESS;
}
static int collective(void* communicator, Call call, const void* from, void* to, void* stream) {
    auto* c = (Communicator*)communicator;
    if (c->error) return c->error;
    auto submit = [=] { return in_order(stream, [=] { run(*c, call, (const char*)from, (char*)to); }) ? INVALID_USAGE : SUCCESS; };
    if (!groups) return submit();
    calls.push_back(submit);
    return SUCCESS;
}

extern "C" {
int ncclGetVersion(int* version) {
    *version = 22700;
    return SUCCESS;
}
const char* ncclGetErrorString(int result) { return result == SUCCESS ? "no error" : result == INVALID_USAGE ? "invalid usage" : "an error of the emulated NCCL"; }
struct Id {
    char bytes[128];
};
int ncclGetUniqueId(Id* id) {
    *id = {};
    std::random_device random;
    snprintf(id->bytes, sizeof id->bytes, "/emulated-nccl-%08x%08x", random(), random());
    return SUCCESS;
}
int ncclCommInitRankConfig(void** made, int ranks, Id id, int rank, void*) {
    if (ranks < 1 || ranks > MOST || rank < 0 || rank >= ranks) return INVALID_ARGUMENT;
    int file = shm_open(id.bytes, O_CREAT | O_RDWR, 0600);
    if (file < 0 || ftruncate(file, sizeof(Shared))) return SYSTEM_ERROR;
    auto* c = new Communicator{(Shared*)mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), ranks, rank, device::current, {SUCCESS}, id.bytes};
    close(file);
    Shared& s = *c->shared;
    s.devices[rank] = c->device;
    s.attached++;
    auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (s.attached < ranks && !s.aborted) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        if (std::chrono::steady_clock::now() > end) s.aborted = 1;
    }
    shm_unlink(id.bytes);
    if (s.aborted) return SYSTEM_ERROR;
    for (int r = 0; r < ranks; r++)
        if (r != rank && s.devices[r] == c->device) {
            fprintf(stderr, "EMULATED NCCL: ranks %d and %d have the same GPU\n", r, rank);
            return INVALID_USAGE;
        }
    if (ranks > 1) {
        std::lock_guard<std::mutex> held(device::lock);
        device::keep_going();
    }
    *made = c;
    return SUCCESS;
}
int ncclCommInitRank(void** made, int ranks, Id id, int rank) { return ncclCommInitRankConfig(made, ranks, id, rank, nullptr); }
int ncclCommDestroy(void* communicator) {
    {
        std::lock_guard<std::mutex> held(device::lock);
        device::finish_all();
    }
    auto* c = (Communicator*)communicator;
    munmap(c->shared, sizeof(Shared));
    delete c;
    return SUCCESS;
}
int ncclCommAbort(void* communicator) { // memory is kept: queued calls look at it
    ((Communicator*)communicator)->shared->aborted = 1;
    return SUCCESS;
}
int ncclCommGetAsyncError(void* communicator, int* error) {
    *error = ((Communicator*)communicator)->error;
    return SUCCESS;
}
int ncclCommCount(void* communicator, int* count) {
    *count = ((Communicator*)communicator)->ranks;
    return SUCCESS;
}
int ncclCommUserRank(void* communicator, int* rank) {
    *rank = ((Communicator*)communicator)->rank;
    return SUCCESS;
}
int ncclCommCuDevice(void* communicator, int* device) {
    *device = ((Communicator*)communicator)->device;
    return SUCCESS;
}
int ncclGroupStart() {
    groups++;
    return SUCCESS;
}
int ncclGroupEnd() {
    if (--groups) return SUCCESS;
    int result = submit_messages();
    for (auto& call : std::exchange(calls, {}))
        if (int failed = call()) result = failed;
    return result;
}
int ncclSend(const void* from, size_t count, int type, int peer, void* communicator, void* stream) {
    messages.push_back({(Communicator*)communicator, peer, true, (char*)from, count * size_of(type), stream});
    return groups ? SUCCESS : submit_messages();
}
int ncclRecv(void* to, size_t count, int type, int peer, void* communicator, void* stream) {
    messages.push_back({(Communicator*)communicator, peer, false, (char*)to, count * size_of(type), stream});
    return groups ? SUCCESS : submit_messages();
}
int ncclAllReduce(const void* from, void* to, size_t count, int type, int operation, void* c, void* stream) { return collective(c, {ALL_REDUCE, type, operation, 0, count}, from, to, stream); }
int ncclReduce(const void* from, void* to, size_t count, int type, int operation, int root, void* c, void* stream) { return collective(c, {REDUCE, type, operation, root, count}, from, to, stream); }
int ncclReduceScatter(const void* from, void* to, size_t count, int type, int operation, void* c, void* stream) { return collective(c, {REDUCE_SCATTER, type, operation, 0, count}, from, to, stream); }
int ncclAllGather(const void* from, void* to, size_t count, int type, void* c, void* stream) { return collective(c, {ALL_GATHER, type, 0, 0, count}, from, to, stream); }
int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, void* c, void* stream) { return collective(c, {BROADCAST, type, 0, root, count}, from, to, stream); }
int ncclBcast(void* at, size_t count, int type, int root, void* c, void* stream) { return ncclBroadcast(at, at, count, type, root, c, stream); }
}
