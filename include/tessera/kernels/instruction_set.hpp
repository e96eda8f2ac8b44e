// Which vector instructions the CPU kernels use: the best that this machine has, or what a test asks for.
// All give the same bits; only where two NaNs meet in one operation, either one's payload may survive.
#pragma once

#include <string_view>
#include <vector>

#pragma GCC visibility push(default)

namespace tessera::kernels {

enum class InstructionSet { portable, avx2, avx512 };

std::string_view to_string(InstructionSet set);
std::vector<InstructionSet> available_instruction_sets();  // of this build and machine; `portable` is always among them

// The set in use. By default the best available; the environment variable TESSERA_INSTRUCTION_SET (portable, avx2,
// avx512) overrides it; an unknown or unavailable value there is a UsageError.
InstructionSet active_instruction_set();

// Test hook: replaces the set in use, for the whole process. Not while streams run. Throws UsageError when unavailable.
void select_instruction_set(InstructionSet set);

}  // namespace tessera::kernels

#pragma GCC visibility pop
