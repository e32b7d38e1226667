// The emulated NVRTC: compiles a kernel file with the machine's C++ compiler to a shared object, the "cubin".
//
// In two steps: the preprocessed text shows which kernels there are (`prelude.h` makes `__global__` a word of its own), and a table of
// them, with code that unpacks their arguments, goes behind it. `$CXX` (default: g++) is the compiler; `GLIM_EMULATOR_CXXFLAGS` adds to
// its flags.
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

extern char** environ;

#ifndef GLIM_EMULATOR_BUILD
#error "define GLIM_EMULATOR_BUILD: a number that changes with these sources"
#endif

namespace {

enum nvrtcResult {
    SUCCESS = 0,
    OUT_OF_MEMORY = 1,
    PROGRAM_CREATION_FAILURE = 2,
    INVALID_INPUT = 3,
    INVALID_PROGRAM = 4,
    INVALID_OPTION = 5,
    COMPILATION = 6,
    INTERNAL_ERROR = 11,
};

struct Program {
    std::string source, name, log;
    std::vector<char> binary;
};

// ---- files and processes ---------------------------------------------------------------------------------------------------------------

// A folder that goes away with its files.
struct Folder {
    std::string path;
    Folder() {
        const char* where = getenv("TMPDIR");
        path = std::string(where && *where ? where : P_tmpdir) + "/glim-nvrtc-XXXXXX";
        if (!mkdtemp(path.data())) path.clear();
    }
    ~Folder() {
        for (const char* name : {"kernel.cpp", "kernel.ii", "table.ii", "kernel.so", "log"}) unlink(file(name).c_str());
        if (!path.empty()) rmdir(path.c_str());
    }
    std::string file(const std::string& name) const { return path + "/" + name; }
};

std::string read_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
}

void write_file(const std::string& path, const std::string& text) {
    std::ofstream out(path, std::ios::binary);
    out << text;
}

// Runs a command with both its outputs in a file; false if it fails.
bool execute(const std::vector<std::string>& command, const std::string& log) {
    std::vector<char*> arguments;
    for (const std::string& part : command) arguments.push_back(const_cast<char*>(part.c_str()));
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    pid_t child;
    const int failed = posix_spawnp(&child, arguments[0], &files, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&files);
    if (failed) {
        write_file(log, command[0] + ": " + strerror(failed) + "; the emulated NVRTC needs a C++ compiler\n");
        return false;
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// The headers lie beside this library.
std::string include_folder() {
    Dl_info info;
    if (!dladdr(reinterpret_cast<void*>(&include_folder), &info)) return "include";
    const std::string library = info.dli_fname;
    const size_t slash = library.rfind('/');
    return (slash == std::string::npos ? "." : library.substr(0, slash)) + "/include";
}

// ---- kernels -----------------------------------------------------------------------------------------------------------------------------

struct Kernel {
    std::string name;
    // The arguments of `__launch_bounds__`; empty if there is none.
    std::string bounds;
};

bool is_word(char c) { return isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Takes `glim_kernel_of` and `glim_kernel_bounds(...)` out of the preprocessed text, and lists what they stood in front of.
std::vector<Kernel> take_kernels(std::string& text) {
    static const std::string MARK = "glim_kernel_of", BOUNDS = "glim_kernel_bounds";
    std::vector<Kernel> kernels;
    std::set<std::string> seen;
    for (size_t at = 0; (at = text.find(MARK, at)) != std::string::npos;) {
        text.replace(at, MARK.size(), MARK.size(), ' ');
        Kernel kernel;
        std::string word;
        // Up to the parenthesis of the parameters: the word before it is the name.
        for (; at < text.size(); at++) {
            if (text.compare(at, BOUNDS.size(), BOUNDS) == 0) {
                const size_t open = text.find('(', at);
                size_t close = open;
                for (int depth = 0; close < text.size(); close++) {
                    if (text[close] == '(') depth++;
                    if (text[close] == ')' && --depth == 0) break;
                }
                kernel.bounds = text.substr(open + 1, close - open - 1);
                for (size_t i = at; i <= close && i < text.size(); i++) {
                    if (text[i] != '\n') text[i] = ' ';
                }
                at = close;
                word.clear();
            } else if (is_word(text[at])) {
                if (at == 0 || !is_word(text[at - 1])) word.clear();
                word += text[at];
            } else if (text[at] == '(' || text[at] == ';' || text[at] == '{') {
                break;
            }
        }
        kernel.name = word;
        if (at < text.size() && text[at] == '(' && !word.empty() && seen.insert(word).second) kernels.push_back(kernel);
    }
    return kernels;
}

const char* const TABLE = R"(
# 1 "glim-kernels"
template <unsigned... I> struct glim_numbers {};
template <unsigned N, unsigned... I> struct glim_count : glim_count<N - 1, N - 1, I...> {};
template <unsigned... I> struct glim_count<0, I...> { typedef glim_numbers<I...> type; };
template <class F> struct glim_signature;
template <class... A> struct glim_signature<void (*)(A...)> {
    static constexpr unsigned count = sizeof...(A);
    static constexpr unsigned bytes[] = {sizeof(A)..., 0};
    template <unsigned... I> static void call(void (*f)(A...), void** arguments, glim_numbers<I...>) {
        f(*static_cast<A*>(arguments[I])...);
    }
};
template <auto f> void glim_call(void** arguments) {
    typedef glim_signature<decltype(f)> Signature;
    Signature::call(f, arguments, typename glim_count<Signature::count>::type());
}
constexpr unsigned glim_first(unsigned first = 1024, unsigned = 0, unsigned = 0) { return first; }
extern "C" __attribute__((visibility("default"))) const glim_kernel glim_kernels[] = {
)";

std::string table(const std::vector<Kernel>& kernels) {
    std::string text = TABLE;
    for (const Kernel& kernel : kernels) {
        const std::string signature = "glim_signature<decltype(&" + kernel.name + ")>";
        text += "    {\"" + kernel.name + "\", &glim_call<&" + kernel.name + ">, " + signature + "::bytes, " + signature +
                "::count, glim_first(" + kernel.bounds + ")},\n";
    }
    return text + "    {nullptr, nullptr, nullptr, 0, 0},\n};\n";
}

// ---- options -----------------------------------------------------------------------------------------------------------------------------

bool begins(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

// Definitions go on to the compiler; what only means something to the real one is dropped. False for what neither knows.
bool take_option(const std::string& option, std::vector<std::string>& flags) {
    static const char* const DROPPED[] = {"--gpu-architecture=", "-arch=", "--std=c++", "-std=c++", "-default-device", "--device-as-default-execution-space",
                                          "--ptxas-options=", "-Xptxas", "-lineinfo", "--generate-line-info", "--fmad=", "-fmad=", "--maxrregcount=",
                                          "--no-cache", "-no-cache", "--resource-usage", "-w", "--disable-warnings", "--diag-suppress=",
                                          "--split-compile=", "--time=", "--extra-device-vectorization", "-G", "--restrict", "--relocatable-device-code="};
    if (begins(option, "--define-macro=")) {
        flags.push_back("-D" + option.substr(strlen("--define-macro=")));
        return true;
    }
    if (begins(option, "-D") || begins(option, "-U") || begins(option, "-I")) {
        flags.push_back(option);
        return true;
    }
    for (const char* dropped : DROPPED) {
        if (begins(option, dropped)) return true;
    }
    return false;
}

const char* compiler() {
    const char* named = getenv("CXX");
    return named && *named ? named : "g++";
}

nvrtcResult compile(Program& program, const std::vector<std::string>& options) {
    std::vector<std::string> flags = {"-DGLIM_EMULATED"};
    for (const std::string& option : options) {
        if (!take_option(option, flags)) {
            program.log = "the emulated NVRTC does not know the option " + option + "\n";
            return INVALID_OPTION;
        }
    }
    Folder folder;
    if (folder.path.empty()) {
        program.log = "no temporary folder can be made; set TMPDIR\n";
        return INTERNAL_ERROR;
    }
    write_file(folder.file("kernel.cpp"), "#include \"prelude.h\"\n# 1 \"" + program.name + "\"\n" + program.source + "\n");

    std::vector<std::string> command = {compiler(), "-E", "-std=c++17", "-I", include_folder()};
    command.insert(command.end(), flags.begin(), flags.end());
    command.insert(command.end(), {folder.file("kernel.cpp"), "-o", folder.file("kernel.ii")});
    if (!execute(command, folder.file("log"))) {
        program.log = read_file(folder.file("log"));
        return COMPILATION;
    }
    std::string text = read_file(folder.file("kernel.ii"));
    const std::vector<Kernel> kernels = take_kernels(text);
    write_file(folder.file("table.ii"), text + table(kernels));

    // No contraction, so that sums round as they are written; no libraries but the C library, so that linking is quick; line numbers
    // for reports; checks of what a GPU would trap or get wrong; no unique symbols, which would tie modules to each other.
    command = {compiler(), "-x", "c++-cpp-output", "-std=c++17", "-O1", "-g1", "-shared", "-fPIC", "-w", "-fpermissive", "-ffp-contract=off",
               "-fno-exceptions", "-fno-rtti", "-fno-strict-aliasing", "-fno-gnu-unique", "-fno-stack-protector", "-fno-omit-frame-pointer",
               "-fno-asynchronous-unwind-tables", "-fsanitize=alignment,bounds,shift-exponent", "-fsanitize-undefined-trap-on-error",
               "-U_FORTIFY_SOURCE",
#if defined(__x86_64__)
               __builtin_cpu_supports("fma") ? "-mfma" : "-msse2",
#endif
               "-Wl,-z,now", "-Wl,-Bsymbolic", "-nostdlib"};
    // Reports name a file as the source does, not where the compiler ran.
    char here[4096];
    if (getcwd(here, sizeof(here))) command.push_back(std::string("-fdebug-prefix-map=") + here + "=kernels");
    if (const char* more = getenv("GLIM_EMULATOR_CXXFLAGS")) {
        std::istringstream words(more);
        for (std::string word; words >> word;) command.push_back(word);
    }
    command.insert(command.end(), {folder.file("table.ii"), "-o", folder.file("kernel.so"), "-lm", "-lc", "-lgcc"});
    const bool compiled = execute(command, folder.file("log"));
    program.log = read_file(folder.file("log"));
    if (!compiled) return COMPILATION;
    const std::string binary = read_file(folder.file("kernel.so"));
    program.binary.assign(binary.begin(), binary.end());
    return SUCCESS;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default")))

API nvrtcResult nvrtcVersion(int* major, int* minor) {
    // Never that of a real one: what is compiled here must not be taken from a cache of theirs, nor from an older emulator's.
    *major = 13;
    *minor = 1000000 + GLIM_EMULATOR_BUILD % 1000000000;
    return SUCCESS;
}
API nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
    *count = 1;
    return SUCCESS;
}
API nvrtcResult nvrtcGetSupportedArchs(int* archs) {
    archs[0] = 90;
    return SUCCESS;
}
API const char* nvrtcGetErrorString(nvrtcResult result) {
    switch (result) {
        case SUCCESS: return "NVRTC_SUCCESS";
        case OUT_OF_MEMORY: return "NVRTC_ERROR_OUT_OF_MEMORY";
        case PROGRAM_CREATION_FAILURE: return "NVRTC_ERROR_PROGRAM_CREATION_FAILURE";
        case INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
        case INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
        case INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
        case COMPILATION: return "NVRTC_ERROR_COMPILATION";
        default: return "NVRTC_ERROR_INTERNAL_ERROR";
    }
}
API nvrtcResult nvrtcCreateProgram(Program** program, const char* source, const char* name, int headers, const char* const*,
                                   const char* const*) {
    if (!program || !source) return INVALID_INPUT;
    // Kernels come in one piece.
    if (headers) return PROGRAM_CREATION_FAILURE;
    *program = new Program{source, name ? name : "default_program", "", {}};
    return SUCCESS;
}
API nvrtcResult nvrtcDestroyProgram(Program** program) {
    if (!program || !*program) return INVALID_PROGRAM;
    delete *program;
    *program = nullptr;
    return SUCCESS;
}
API nvrtcResult nvrtcCompileProgram(Program* program, int count, const char* const* options) {
    if (!program) return INVALID_PROGRAM;
    return compile(*program, {options, options + count});
}
API nvrtcResult nvrtcGetCUBINSize(Program* program, size_t* bytes) {
    if (!program) return INVALID_PROGRAM;
    *bytes = program->binary.size();
    return SUCCESS;
}
API nvrtcResult nvrtcGetCUBIN(Program* program, char* bytes) {
    if (!program || program->binary.empty()) return INVALID_PROGRAM;
    memcpy(bytes, program->binary.data(), program->binary.size());
    return SUCCESS;
}
API nvrtcResult nvrtcGetPTXSize(Program*, size_t* bytes) {
    // There is no PTX.
    *bytes = 0;
    return INVALID_PROGRAM;
}
API nvrtcResult nvrtcGetPTX(Program*, char*) { return INVALID_PROGRAM; }
API nvrtcResult nvrtcGetProgramLogSize(Program* program, size_t* bytes) {
    if (!program) return INVALID_PROGRAM;
    *bytes = program->log.size() + 1;
    return SUCCESS;
}
API nvrtcResult nvrtcGetProgramLog(Program* program, char* log) {
    if (!program) return INVALID_PROGRAM;
    memcpy(log, program->log.c_str(), program->log.size() + 1);
    return SUCCESS;
}
