// Products and convolutions by oneDNN share this: one thread for each caller, and what the processor has.
#pragma once

#include <dlfcn.h>

#include <dnnl.hpp>

namespace tessera::nn::onednn {

// oneDNN's OpenMP would start threads of its own for each thread that calls it. The runtime is found by name, because
// which one it is (libgomp, libomp, libiomp5) is oneDNN's choice.
class OneThread {
 public:
  OneThread() : before_(runtime().most == nullptr ? 1 : runtime().most()) {
    if (before_ != 1) runtime().set(1);
  }
  ~OneThread() {
    if (before_ != 1) runtime().set(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

  static bool possible() {
    switch (dnnl::version()->cpu_runtime) {
      case DNNL_RUNTIME_SEQ: return true;
      case DNNL_RUNTIME_OMP: return runtime().most != nullptr && runtime().set != nullptr;
      default: return false;
    }
  }

 private:
  struct Runtime {
    int (*most)();
    void (*set)(int);
  };
  static const Runtime& runtime() {
    static const Runtime found{reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads")),
                               reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"))};
    return found;
  }

  int before_;
};

inline bool has(dnnl_cpu_isa_t set) {
  const int effective = static_cast<int>(dnnl::get_effective_cpu_isa());
  return (effective & static_cast<int>(set)) == static_cast<int>(set);
}

}  // namespace tessera::nn::onednn
