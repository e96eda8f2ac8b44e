// Choosing instruction sets.
#include "tessera/kernels/instruction_set.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "cases.hpp"
#include "tessera/base/error.hpp"

using namespace tessera;
using kernels::InstructionSet;

TEST_CASE("portable is always available, and the best is in use unless the environment says otherwise") {
  const std::vector<InstructionSet> available = kernels::available_instruction_sets();
  REQUIRE_FALSE(available.empty());
  CHECK(available.front() == InstructionSet::portable);
  const char* wish = std::getenv("TESSERA_INSTRUCTION_SET");
  CHECK(to_string(kernels::active_instruction_set()) ==
        (wish ? std::string(wish) : std::string(to_string(available.back()))));
}

TEST_CASE("a set that is selected is in use; one that is not available is an error that lists those that are") {
  const std::vector<InstructionSet> available = kernels::available_instruction_sets();
  const InstructionSet before = kernels::active_instruction_set();
  for (InstructionSet set : {InstructionSet::portable, InstructionSet::avx2, InstructionSet::avx512}) {
    if (std::find(available.begin(), available.end(), set) != available.end()) {
      kernels::select_instruction_set(set);
      CHECK(kernels::active_instruction_set() == set);
    } else {
      CHECK_THROWS_WITH_AS(kernels::select_instruction_set(set), doctest::Contains("available: portable"), UsageError);
    }
  }
  kernels::select_instruction_set(before);
}
