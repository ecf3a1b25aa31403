// Streams, events and graphs.
#include "device.h"
#include "ptx.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime_api.h>
#include <deque>
#include <set>
#include <thread>
#include <utility>

namespace device {

struct Graph {
    std::vector<Work> work; // in the order of the calls, which is one that its streams allow
    std::set<Stream*> apart; // streams with work that the first one does not wait for
    Stream* first = nullptr;
    std::thread::id thread;
};

struct Item {
    std::vector<Position> after;
    Work work; // none: a wait
    bool may_cross_devices;
};

struct Stream {
    int device = 0;
    bool is_blocking = true; // it takes turns with the default stream
    std::deque<Item> queue;
    long submitted = 0, done = 0;
    bool is_running = false;
    Graph* capture = nullptr;
};

struct Event {
    Position position;
    Graph* capture = nullptr;
    Stream* captured_on = nullptr;
    std::chrono::steady_clock::time_point time;
};

std::mutex lock;
thread_local int current = 0;
// Never destroyed: a thread in the background, and Python's last arrays, use them when the process ends.
static auto& something_is_done = *new std::condition_variable;
static auto& streams = *new std::map<void*, std::shared_ptr<Stream>>; // the default ones by `&defaults[device]`
static char defaults[64];
static int captures = 0, error_of_work = 0, last_error = 0;
static std::atomic<long> calls{0};

int remember(int error) {
    if (error) last_error = error;
    return error;
}

void fail(int error) { error_of_work = error; }

static std::shared_ptr<Stream> default_of(int device) {
    auto& made = streams[&defaults[device]];
    if (!made) {
        made = std::make_shared<Stream>();
        made->device = device;
    }
    return made;
}
static bool is_default(const Stream& s) { return default_of(s.device).get() == &s; }

static std::shared_ptr<Stream> find(void* handle) {
    calls++;
    if (uint64_t(handle) <= 2) return default_of(current);
    auto found = streams.find(handle);
    return found == streams.end() ? nullptr : found->second;
}

static void run(Stream& s, const Item& item) {
    if (!item.work) return;
    let_access(item.may_cross_devices ? -1 : s.device);
    try {
        item.work();
    } catch (const ptx::Fault& fault) {
        fprintf(stderr, "EMULATED GPU: %s\n", fault.what());
        error_of_work = fault.code;
    } catch (const std::exception& error) {
        fprintf(stderr, "EMULATED GPU: %s\n", error.what());
        error_of_work = ptx::LAUNCH_FAILURE;
    }
}

static void run_until(const std::shared_ptr<Stream>& s, long number) {
    while (s->done < number) {
        if (s->is_running) { // in another thread, which polls
            std::unique_lock<std::mutex> held(lock, std::adopt_lock);
            something_is_done.wait_for(held, std::chrono::milliseconds(50));
            held.release();
            continue;
        }
        s->is_running = true;
        Item item = std::move(s->queue.front());
        s->queue.pop_front();
        for (auto& p : item.after) run_until(p.stream, p.number);
        run(*s, item);
        s->is_running = false;
        s->done++;
        something_is_done.notify_all();
    }
}

int finish(const Position& p) {
    if (p.stream) run_until(p.stream, p.number);
    int error = error_of_work;
    error_of_work = 0;
    return error;
}

int finish_all() {
    for (auto& [_, s] : std::map(streams)) run_until(s, s->submitted);
    return finish({});
}

Position end_of(void* handle) {
    auto s = find(handle);
    return {s, s ? s->submitted : 0};
}

int finish_stream(void* handle) {
    auto s = find(handle);
    return !s ? cudaErrorInvalidResourceHandle : s->capture ? cudaErrorStreamCaptureUnsupported : finish({s, s->submitted});
}

bool is_capturing(void* handle) {
    auto s = find(handle);
    return s && s->capture;
}

static bool captures_here() { // a capture of this thread: whatever is not part of it is refused
    for (auto& [_, s] : streams)
        if (s->capture && s->capture->thread == std::this_thread::get_id()) return true;
    return false;
}
bool is_anything_captured() { return captures && captures_here(); }

static void put(const std::shared_ptr<Stream>& s, Item item) {
    if (is_default(*s)) {
        for (auto& [_, other] : streams)
            if (other->is_blocking && other->device == s->device && other != s && other->done < other->submitted) item.after.push_back({other, other->submitted});
    } else if (s->is_blocking) {
        auto first = default_of(s->device);
        if (first->done < first->submitted) item.after.push_back({first, first->submitted});
    }
    s->queue.push_back(std::move(item));
    s->submitted++;
    static const bool at_once = getenv("EMULATED_STREAMS") && !strcmp(getenv("EMULATED_STREAMS"), "now");
    if (at_once) run_until(s, s->submitted);
}

int submit(void* handle, Work work, bool may_cross_devices) {
    auto s = find(handle);
    if (!s || s->device != current) return cudaErrorInvalidResourceHandle;
    if (s->capture) {
        s->capture->work.push_back(std::move(work));
        if (s.get() != s->capture->first) s->capture->apart.insert(s.get());
        return 0;
    }
    if (is_default(*s) && is_anything_captured()) return cudaErrorStreamCaptureImplicit;
    put(s, {{}, std::move(work), may_cross_devices});
    return 0;
}

void poll(const std::function<bool()>& is_done) {
    lock.unlock();
    while (!is_done()) std::this_thread::sleep_for(std::chrono::microseconds(20));
    lock.lock();
}

void keep_going() {
    static bool is_started = false;
    if (is_started) return;
    is_started = true;
    std::thread([] {
        for (long seen = -1;;) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            if (seen == calls) {
                std::lock_guard<std::mutex> held(lock);
                for (auto& [_, s] : std::map(streams)) run_until(s, s->submitted);
            }
            seen = calls;
        }
    }).detach();
}

} // namespace device

using namespace device;
using Held = std::lock_guard<std::mutex>;
#define RETURN(x) return cudaError_t(remember(x))

extern "C" {
int emulated_submit(void* stream, void (*function)(void*), void* argument) {
    Held held(lock);
    return submit(stream, [=] { function(argument); });
}

cudaError_t cudaGetLastError() { return cudaError_t(std::exchange(last_error, 0)); }
cudaError_t cudaPeekAtLastError() { return cudaError_t(last_error); }

// -- streams ---------------------------------------------------------------------------------------------------------
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    Held held(lock);
    auto made = std::make_shared<Stream>();
    made->device = current;
    made->is_blocking = !(flags & cudaStreamNonBlocking);
    *stream = cudaStream_t(made.get());
    streams[*stream] = made;
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, 0); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) { return cudaStreamCreateWithFlags(stream, flags); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { // its work is done all the same
    Held held(lock);
    if (auto s = find(stream)) run_until(s, s->submitted);
    streams.erase(stream);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    Held held(lock);
    RETURN(finish_stream(stream));
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { // work goes on while a program asks
    Held held(lock);
    auto s = find(stream);
    if (!s) RETURN(cudaErrorInvalidResourceHandle);
    if (s->capture) RETURN(cudaErrorStreamCaptureUnsupported);
    if (s->done == s->submitted) RETURN(finish({}));
    run_until(s, s->done + 1);
    return cudaErrorNotReady;
}
cudaError_t cudaDeviceSynchronize() {
    Held held(lock);
    RETURN(is_anything_captured() ? int(cudaErrorStreamCaptureUnsupported) : finish_all());
}

// -- events ----------------------------------------------------------------------------------------------------------
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    *event = cudaEvent_t(new Event);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { // work that sets its time may be queued; a few bytes are kept
    return event ? cudaSuccess : cudaErrorInvalidResourceHandle;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    Held held(lock);
    auto& e = *(Event*)event;
    auto s = find(stream);
    if (!s || s->device != current) RETURN(cudaErrorInvalidResourceHandle);
    e.capture = s->capture;
    e.captured_on = s.get();
    if (s->capture) return cudaSuccess;
    int error = submit(stream, [&e] { e.time = std::chrono::steady_clock::now(); });
    e.position = {s, s->submitted};
    RETURN(error);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    Held held(lock);
    calls++;
    auto& p = ((Event*)event)->position;
    if (!p.stream || p.stream->done >= p.number) return cudaSuccess;
    run_until(p.stream, p.stream->done + 1);
    return cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    Held held(lock);
    auto& e = *(Event*)event;
    RETURN(e.capture ? int(cudaErrorStreamCaptureUnsupported) : finish(e.position));
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t a, cudaEvent_t b) {
    Held held(lock);
    auto &first = *(Event*)a, &last = *(Event*)b;
    for (auto* e : {&first, &last})
        if (e->position.stream && e->position.stream->done < e->position.number) RETURN(cudaErrorNotReady);
    *ms = std::chrono::duration<float, std::milli>(last.time - first.time).count();
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    Held held(lock);
    auto& e = *(Event*)event;
    auto s = find(stream);
    if (!s) RETURN(cudaErrorInvalidResourceHandle);
    if (e.capture) { // the stream takes part in the capture
        if (s->capture && s->capture != e.capture) RETURN(cudaErrorStreamCaptureMerge);
        s->capture = e.capture;
        if (s.get() == e.capture->first) e.capture->apart.erase(e.captured_on);
    } else if (s->capture) {
        if (e.position.stream && e.position.stream->done < e.position.number) RETURN(cudaErrorStreamCaptureIsolation);
    } else if (e.position.stream) {
        put(s, {{e.position}, {}, true});
    }
    return cudaSuccess;
}

// -- graphs ----------------------------------------------------------------------------------------------------------
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    Held held(lock);
    auto s = find(stream);
    if (!s || is_default(*s) || s->capture) RETURN(cudaErrorStreamCaptureUnsupported);
    s->capture = new Graph;
    s->capture->first = s.get();
    s->capture->thread = std::this_thread::get_id();
    captures++;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    Held held(lock);
    auto s = find(stream);
    if (!s || !s->capture) RETURN(cudaErrorStreamCaptureInvalidated);
    Graph* made = s->capture;
    for (auto& [_, other] : streams)
        if (other->capture == made) other->capture = nullptr;
    captures--;
    *graph = cudaGraph_t(made);
    RETURN(made->apart.empty() ? cudaSuccess : cudaErrorStreamCaptureUnjoined);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    Held held(lock);
    *status = is_capturing(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
    *made = cudaGraphExec_t(new Graph(*(Graph*)graph));
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    Held held(lock);
    auto work = std::make_shared<std::vector<Work>>(((Graph*)graph)->work); // the graph may be destroyed before
    RETURN(submit(stream, [work] { for (auto& one : *work) one(); }));
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete (Graph*)graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    delete (Graph*)graph;
    return cudaSuccess;
}
}
