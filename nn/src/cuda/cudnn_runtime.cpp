// Opens cuDNN, and the CUDA runtime as cudnn-frontend wants it.
#include "src/cuda/cudnn_runtime.hpp"

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <memory>

#include "tessera/base/error.hpp"

// cudnn-frontend finds cuDNN's functions in this handle.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace tessera::nn::cuda::cudnn {

namespace {

constexpr std::size_t oldest = 90'100;  // 9.1: since then attention's engines are those that are asked for

struct Library {
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnGetErrorString) text_of = nullptr;
  Runtime runtime;
};

template <typename Function>
void find(Library& library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(cudnn_frontend::cudnn_dlhandle, name));
  if (function == nullptr) library.runtime.missing = fmt::format("the cuDNN that was found has no {}", name);
}

// cudnn-frontend looks for it itself, but takes one of another release where there are two; the statically linked one
// has no symbols that it could find.
std::string open_cuda_runtime() {
  constexpr const char* variable = "CUDNN_FRONTEND_CUDART_LIB_NAME";
  const char* const wish = std::getenv(variable);
  const std::string name = wish != nullptr ? wish : fmt::format("libcudart.so.{}", CUDART_VERSION / 1000);
  if (::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    return fmt::format("the CUDA runtime was not found as a shared library ({}), which cudnn-frontend calls",
                       ::dlerror());
  }
  ::setenv(variable, name.c_str(), 0);
  return "";
}

Library load() {
  Library library;
  std::string& missing = library.runtime.missing;
  missing = open_cuda_runtime();
  if (!missing.empty()) return library;
  cudnn_frontend::cudnn_dlhandle = ::dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  if (cudnn_frontend::cudnn_dlhandle == nullptr) {
    missing = fmt::format("it was not found: {}", ::dlerror());
    return library;
  }
  decltype(&cudnnGetVersion) version = nullptr;
  find(library, "cudnnGetVersion", version);
  find(library, "cudnnCreate", library.create);
  find(library, "cudnnDestroy", library.destroy);
  find(library, "cudnnSetStream", library.set_stream);
  find(library, "cudnnGetErrorString", library.text_of);
  if (!missing.empty()) return library;
  const std::size_t number = version();
  library.runtime.in_words = fmt::format("cuDNN {}.{}.{}", number / 10'000, number / 100 % 100, number % 100);
  if (number < oldest)
    missing = fmt::format("{} was found, but 9.1 is the oldest that will do", library.runtime.in_words);
  return library;
}

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) throw Error(fmt::format("{} failed: {}", call, library().text_of(status)));
}

using Owned = std::unique_ptr<cudnnContext, cudnnStatus_t (*)(cudnnHandle_t)>;

}  // namespace

const Runtime& runtime() { return library().runtime; }

cudnnHandle_t handle() {
  thread_local std::map<int, Owned> handles;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) throw Error("cudaGetDevice failed");
  const auto found = handles.find(device);
  if (found != handles.end()) return found->second.get();
  cudnnHandle_t made = nullptr;
  check(library().create(&made), "cudnnCreate");
  return handles.emplace(device, Owned(made, library().destroy)).first->second.get();
}

cudnnHandle_t handle_on(void* native) {
  const cudnnHandle_t result = handle();
  check(library().set_stream(result, static_cast<cudaStream_t>(native)), "cudnnSetStream");
  return result;
}

}  // namespace tessera::nn::cuda::cudnn
