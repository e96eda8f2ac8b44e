// Names of enumerators are complete.
#include <doctest/doctest.h>

#include <set>
#include <string_view>

#include "tessera/base/error.hpp"
#include "tessera/plan/plan.hpp"
#include "tessera/plan/verify.hpp"

namespace tessera::plan::names_test {

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

TEST_CASE("every_enumerator_has_a_name_of_its_own") {
  check_names(Category::on_disk);
  check_names(StreamId::receive_back);
  check_names(Role::collected);
  check_names(WaitType::throttle);
  check_names(OperationKind::transfer);
  check_names(CollectiveKind::receive);
  check_names(MemorySpace::disk);
  check_names(SegmentKind::synchronize);
  check_names(ViolationKind::deadlock);
  check_names(WindowKind::backward_input);
  check_names(Axis::tensor);
  check_names(AccumulationMode::local);
  check_names(Checkpointing::background);
  check_names(CollectiveStaging::results);
  CHECK(static_cast<std::size_t>(Category::on_disk) + 1 == category_count);
  CHECK(static_cast<std::size_t>(StreamId::receive_back) + 1 == stream_count);
  CHECK(static_cast<std::size_t>(Role::collected) + 1 == role_count);
  CHECK(static_cast<std::size_t>(Axis::tensor) + 1 == axis_count);
}

}  // namespace tessera::plan::names_test
