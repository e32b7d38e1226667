// Modules: what the emulated NVRTC compiled, loaded as a shared object of this process.
#include "state.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

// Bytes of a shared object in memory, by its own tables; 0 if it is none for this machine.
size_t image_bytes(const void* image) {
    const auto* header = static_cast<const ElfW(Ehdr)*>(image);
    const auto* bytes = static_cast<const unsigned char*>(image);
    size_t end = header->e_shoff + size_t(header->e_shnum) * header->e_shentsize;
    for (int i = 0; i < header->e_shnum; i++) {
        const auto* section = reinterpret_cast<const ElfW(Shdr)*>(bytes + header->e_shoff + size_t(i) * header->e_shentsize);
        if (section->sh_type != SHT_NOBITS && section->sh_offset + section->sh_size > end) end = section->sh_offset + section->sh_size;
    }
    return end;
}

// The ELF machine of a cubin.
constexpr int EM_CUDA_GPU = 190;

CUresult check_image(const void* image) {
    if (!image) return CUDA_INVALID_VALUE;
    const auto* header = static_cast<const ElfW(Ehdr)*>(image);
    if (memcmp(header->e_ident, ELFMAG, SELFMAG)) return memcmp(image, "//", 2) ? CUDA_INVALID_IMAGE : CUDA_UNSUPPORTED_PTX_VERSION;
    if (header->e_machine == EM_CUDA_GPU) return CUDA_NO_BINARY_FOR_GPU;
    return header->e_type == ET_DYN ? CUDA_SUCCESS : CUDA_INVALID_IMAGE;
}

CUresult open_image(Module* module, const void* image) {
    const auto* bytes = static_cast<const unsigned char*>(image);
    module->image.assign(bytes, bytes + image_bytes(image));
    const std::string path = write_temporary(module->image);
    if (path.empty()) return CUDA_OPERATING_SYSTEM;
    module->library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    unlink(path.c_str());
    if (!module->library) {
        report(std::string("a module does not load: ") + dlerror());
        return CUDA_INVALID_IMAGE;
    }
    struct link_map* map;
    if (dlinfo(module->library, RTLD_DI_LINKMAP, &map)) return CUDA_INVALID_IMAGE;
    module->base = map->l_addr;
    const auto* header = static_cast<const ElfW(Ehdr)*>(image);
    for (int i = 0; i < header->e_phnum; i++) {
        const auto* segment = reinterpret_cast<const ElfW(Phdr)*>(static_cast<const char*>(image) + header->e_phoff +
                                                                 size_t(i) * header->e_phentsize);
        if (segment->p_type == PT_LOAD) module->span = segment->p_vaddr + segment->p_memsz;
        if (segment->p_type == PT_TLS) module->shared_bytes = segment->p_memsz;
    }
    if (module->shared_bytes && dlinfo(module->library, RTLD_DI_TLS_MODID, &module->shared_id)) return CUDA_INVALID_IMAGE;
    const auto* kernels = static_cast<const glim_kernel*>(dlsym(module->library, "glim_kernels"));
    if (!kernels) return CUDA_INVALID_IMAGE;
    for (; kernels->name; kernels++) {
        Function* function = new Function;
        function->module = module;
        function->kernel = kernels;
        module->functions.push_back(function);
    }
    return CUDA_SUCCESS;
}

void close_image(Module* module) {
    for (Function* function : module->functions) delete function;
    if (module->library) dlclose(module->library);
    delete module;
}

}  // namespace

bool in_module(uint64_t address, size_t bytes) {
    Locked lock(state_lock);
    for (const void* object : Object<Module>::live()) {
        const auto* module = static_cast<const Module*>(static_cast<const Object<Module>*>(object));
        const uint64_t offset = address - module->base;
        if (address >= module->base && offset <= module->span && bytes <= module->span - offset) return true;
    }
    return false;
}

std::string write_temporary(const std::vector<unsigned char>& bytes) {
    const char* folder = getenv("TMPDIR");
    std::string path = std::string(folder && *folder ? folder : P_tmpdir) + "/glim-emulator-XXXXXX";
    const int file = mkostemp(path.data(), O_CLOEXEC);
    if (file < 0) return "";
    const bool written = write(file, bytes.data(), bytes.size()) == ssize_t(bytes.size());
    close(file);
    if (!written) unlink(path.c_str());
    return written ? path : "";
}

API CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    Context* context;
    TRY(current_context(&context));
    TRY(refuse_in_capture());
    TRY(check_image(image));
    Module* loaded = new Module;
    loaded->context = context;
    const CUresult result = open_image(loaded, image);
    if (result != CUDA_SUCCESS) {
        close_image(loaded);
        return result;
    }
    *module = loaded;
    return CUDA_SUCCESS;
}
API CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, void*, void**) {
    return cuModuleLoadData(module, image);
}
API CUresult cuModuleUnload(CUmodule module) {
    if (!is_live(module)) return CUDA_INVALID_HANDLE;
    close_image(module);
    return CUDA_SUCCESS;
}
API CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    if (!is_live(module)) return CUDA_INVALID_HANDLE;
    for (Function* candidate : module->functions) {
        if (!strcmp(candidate->kernel->name, name)) return *function = candidate, CUDA_SUCCESS;
    }
    return CUDA_NOT_FOUND;
}
API CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module, const char* name) {
    if (!is_live(module)) return CUDA_INVALID_HANDLE;
    void* symbol = dlsym(module->library, name);
    Dl_info info;
    const ElfW(Sym)* entry = nullptr;
    if (!symbol || !dladdr1(symbol, &info, const_cast<void**>(reinterpret_cast<const void**>(&entry)), RTLD_DL_SYMENT) || !entry) {
        return CUDA_NOT_FOUND;
    }
    if (address) *address = reinterpret_cast<CUdeviceptr>(symbol);
    if (bytes) *bytes = entry->st_size;
    return CUDA_SUCCESS;
}

// Attributes of CUfunction_attribute.
enum { THREADS_MAX, STATIC_SHARED, CONSTANT, LOCAL, REGISTERS, PTX_VERSION, BINARY_VERSION, CACHE_MODE, DYNAMIC_SHARED_MAX, CARVEOUT };

API CUresult cuFuncGetAttribute(int* value, int attribute, CUfunction function) {
    if (!is_live(function)) return CUDA_INVALID_HANDLE;
    switch (attribute) {
        case THREADS_MAX: *value = int(function->kernel->threads_max); break;
        case STATIC_SHARED: *value = int(function->module->shared_bytes); break;
        case REGISTERS: *value = 32; break;
        case PTX_VERSION: case BINARY_VERSION: *value = 90; break;
        case DYNAMIC_SHARED_MAX: *value = function->dynamic_shared_max; break;
        default: *value = 0; break;
    }
    return CUDA_SUCCESS;
}
API CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
    if (!is_live(function)) return CUDA_INVALID_HANDLE;
    switch (attribute) {
        case DYNAMIC_SHARED_MAX:
            if (value < 0 || value + int(function->module->shared_bytes) > GLIM_SHARED_BYTES) return CUDA_INVALID_VALUE;
            function->dynamic_shared_max = value;
            return CUDA_SUCCESS;
        case CARVEOUT: return value < -1 || value > 100 ? CUDA_INVALID_VALUE : CUDA_SUCCESS;
        default: return CUDA_INVALID_VALUE;
    }
}
API CUresult cuFuncSetCacheConfig(CUfunction function, int) { return is_live(function) ? CUDA_SUCCESS : CUDA_INVALID_HANDLE; }
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads, size_t dynamic_shared) {
    if (!is_live(function)) return CUDA_INVALID_HANDLE;
    if (threads <= 0) return CUDA_INVALID_VALUE;
    const size_t shared = dynamic_shared + function->module->shared_bytes + 1024;
    const int by_threads = 2048 / ((threads + 31) / 32 * 32), by_shared = int(size_t(228 * 1024) / shared);
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    if (*blocks > 32) *blocks = 32;
    return CUDA_SUCCESS;
}
API CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* bytes) {
    if (!is_live(function)) return CUDA_INVALID_HANDLE;
    if (index >= function->kernel->arguments) return CUDA_INVALID_VALUE;
    size_t at = 0;
    for (size_t i = 0; i <= index; i++) {
        const size_t size = function->kernel->argument_bytes[i];
        // Natural alignment, of which no argument of a kernel here has more than 8.
        const size_t align = size % 8 == 0 ? 8 : size;
        at = (at + align - 1) / align * align;
        if (i < index) at += size;
    }
    if (offset) *offset = at;
    if (bytes) *bytes = function->kernel->argument_bytes[index];
    return CUDA_SUCCESS;
}
