// Names of strategies, modes and enumerators: complete, and back again where they are options.
#include <doctest/doctest.h>

#include <set>
#include <string_view>

#include "errors.hpp"
#include "tessera/plan/plan.hpp"
#include "tessera/plan/verify.hpp"

namespace tessera::plan {

namespace {

// All enumerators up to `last` have a name, each its own.
template <typename Enum>
void check_names(Enum last) {
  std::set<std::string_view> names;
  const int count = static_cast<int>(last) + 1;
  for (int value = 0; value < count; ++value) names.insert(to_string(static_cast<Enum>(value)));
  CHECK(names.size() == static_cast<std::size_t>(count));
  CHECK(names.count("") == 0);
  CHECK_THROWS_AS(to_string(static_cast<Enum>(count)), InternalError);
}

}  // namespace

TEST_CASE("every_enumerator_has_a_name_of_its_own") {
  check_names(Category::on_disk);
  check_names(StreamId::host);
  check_names(Role::collected);
  check_names(WaitType::throttle);
  check_names(OperationKind::transfer);
  check_names(CollectiveKind::receive);
  check_names(MemorySpace::disk);
  check_names(SegmentKind::synchronize);
  check_names(ViolationKind::deadlock);
  check_names(WindowKind::evaluate);
  check_names(Axis::tensor);
  check_names(AccumulationMode::local);
  check_names(Checkpointing::background);
  check_names(CollectiveStaging::results);
  CHECK(static_cast<std::size_t>(Category::on_disk) + 1 == category_count);
  CHECK(static_cast<std::size_t>(StreamId::host) + 1 == stream_count);
  CHECK(static_cast<std::size_t>(Role::collected) + 1 == role_count);
  CHECK(static_cast<std::size_t>(Axis::tensor) + 1 == axis_count);
}

TEST_CASE("options_are_read_back_from_their_names") {
  for (const Strategy strategy : all_strategies) {
    CHECK(strategy_from_string(to_string(strategy)) == strategy);
  }
  using enum AccumulationMode;
  for (const AccumulationMode mode : {automatic, reduced, local}) {
    CHECK(accumulation_mode_from_string(to_string(mode)) == mode);
  }
}

TEST_CASE("unknown_names_are_refused_with_the_choices") {
  CHECK(usage_error([] { strategy_from_string("zero9"); }) ==
        "unknown strategy \"zero9\": choose ddp, zero1, zero2, fsdp, hsdp or hfsdp");
  CHECK(usage_error([] { strategy_from_string(""); }) ==
        "unknown strategy \"\": choose ddp, zero1, zero2, fsdp, hsdp or hfsdp");
  CHECK(usage_error([] { accumulation_mode_from_string("Local"); }) ==
        "unknown accumulation mode \"Local\": choose automatic, local or reduced");
}

}  // namespace tessera::plan
