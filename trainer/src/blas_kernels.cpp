// The library reads the variable once, when it is loaded, so only a new start can change it.
#include "tessera/trainer/start.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "tessera/kernels/instruction_set.hpp"

namespace tessera::trainer {

namespace {

constexpr const char* variable = "OPENBLAS_CORETYPE";

// Returns OpenBLAS's name of the kernels in use; empty when it is not the BLAS, or is linked statically.
std::string_view kernels_in_use() {
  void* const function = dlsym(RTLD_DEFAULT, "openblas_get_corename");
  return function == nullptr ? "" : reinterpret_cast<const char* (*)()>(function)();
}

const char* better_kernels() {
  using tessera::kernels::InstructionSet;
  switch (tessera::kernels::available_instruction_sets().back()) {
    case InstructionSet::avx512: return "SkylakeX";
    case InstructionSet::avx2: return "Haswell";
    case InstructionSet::portable: break;
  }
  return nullptr;
}

}  // namespace

void require_fast_blas(char** argv) {
  constexpr std::string_view oldest = "Prescott";
  if (std::getenv(variable) != nullptr || kernels_in_use() != oldest) return;
  const char* const better = better_kernels();
  if (better == nullptr || setenv(variable, better, 1) != 0) return;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  execv(program.c_str(), argv);  // returns when it fails; then these kernels must do
}

}  // namespace tessera::trainer
