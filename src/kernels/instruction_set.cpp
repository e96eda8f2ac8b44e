// Choosing the CPU kernels: the best that the machine has, the environment's wish, or a test's.
#include "tessera/kernels/instruction_set.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <string>

#include "kernels/dispatch.hpp"
#include "tessera/base/error.hpp"

namespace tessera::kernels {
namespace {

constexpr const char* variable = "TESSERA_INSTRUCTION_SET";
constexpr InstructionSet all_sets[] = {InstructionSet::portable, InstructionSet::avx2, InstructionSet::avx512};

const KernelTable* find_table(InstructionSet set) {
  switch (set) {
    case InstructionSet::portable: return &portable_table();
    case InstructionSet::avx2: return find_avx2_table();
    case InstructionSet::avx512: return find_avx512_table();
  }
  return nullptr;
}

std::string available_names() {
  std::string names;
  for (InstructionSet set : available_instruction_sets()) {
    if (!names.empty()) names += ", ";
    names += to_string(set);
  }
  return names;
}

InstructionSet initial_set() {
  const char* wish = std::getenv(variable);
  if (wish == nullptr) return available_instruction_sets().back();
  for (InstructionSet set : available_instruction_sets()) {
    if (to_string(set) == wish) return set;
  }
  throw UsageError(fmt::format("{}=\"{}\": no such instruction set in this build and machine; available: {}", variable,
                               wish, available_names()));
}

// Process-wide by contract: the processor is one, too.
std::atomic<InstructionSet>& active_set() {
  static std::atomic<InstructionSet> set = initial_set();
  return set;
}

}  // namespace

std::string_view to_string(InstructionSet set) {
  switch (set) {
    case InstructionSet::portable: return "portable";
    case InstructionSet::avx2: return "avx2";
    case InstructionSet::avx512: return "avx512";
  }
  throw InternalError(fmt::format("InstructionSet has no member {}", static_cast<int>(set)));
}

std::vector<InstructionSet> available_instruction_sets() {
  std::vector<InstructionSet> available;
  for (InstructionSet set : all_sets) {
    if (find_table(set) != nullptr) available.push_back(set);
  }
  return available;
}

InstructionSet active_instruction_set() { return active_set(); }

void select_instruction_set(InstructionSet set) {
  if (find_table(set) == nullptr) {
    throw UsageError(fmt::format("instruction set {} is not in this build and machine; available: {}", to_string(set),
                                 available_names()));
  }
  active_set() = set;
}

const KernelTable& active_table() { return *find_table(active_set()); }

}  // namespace tessera::kernels
