// For the tests of the interpreter alone: a kernel of a text, on memory of the caller.
#include "ptx.h"

extern "C" const char* emulated_run(const char* text, const char* name, unsigned blocks, unsigned threads, unsigned dynamic_bytes, const uint8_t* parameters) {
    static std::string error;
    try {
        ptx::Module* module = ptx::load(text);
        ptx::Kernel& kernel = module->kernels.at(name);
        ptx::parse(*module, kernel);
        unsigned grid[] = {blocks, 1, 1}, block[] = {threads, 1, 1};
        ptx::launch(kernel, grid, block, dynamic_bytes, parameters);
        error.clear();
    } catch (const std::exception& found) {
        error = found.what();
    }
    return error.c_str();
}
