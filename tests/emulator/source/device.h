// The emulated devices: what memory.cpp, streams.cpp and modules.cpp, and the stand-ins for NVIDIA's libraries, share.
//
// Work is queued in streams and done late: where the host waits for it, or where work that is waited for comes after it.
// So a wait that a program forgot shows. EMULATED_STREAMS=now does it at once.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace device {

using Work = std::function<void()>;
struct Stream;
struct Position { // after the first `number` pieces of work of a stream
    std::shared_ptr<Stream> stream;
    long number = 0;
};

int count();            // EMULATED_GPUS, 4 if it is not set
extern thread_local int current;
extern std::mutex lock; // of everything here; work runs while it is held

// These need the lock. A result is a cudaError_t.
int submit(void* stream, Work work, bool may_cross_devices = false);
int finish(const Position& position); // 0, or the error of work that was done
int finish_stream(void* stream);
int finish_all();
Position end_of(void* stream);
bool is_capturing(void* stream);
bool is_anything_captured();
void fail(int error); // as work does: the next wait returns it
int remember(int error); // for cudaGetLastError

// Polls without the lock, as work that waits for another process does.
void poll(const std::function<bool()>& is_done);
// From now on work is also done, in the background, while this process waits for another one.
void keep_going();

// What the pointer is: memory of a device, page-locked memory of the host, or other.
enum class Kind { device, pinned, other };
Kind kind_of(const void* address, int* of_device = nullptr);
void let_access(int of_device); // its memory alone; -1: that of all

} // namespace device

// For the stand-ins of libraries: queues function(argument) on a stream.
extern "C" int emulated_submit(void* stream, void (*function)(void*), void* argument);
