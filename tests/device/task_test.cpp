// Tasks: callables in place.
#include "tessera/device/task.hpp"

#include <doctest/doctest.h>

#include <memory>

using tessera::Task;

TEST_CASE("a task runs what it was given, also after moves, and destroys it once") {
  auto owned = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = owned;
  Task first([owned = std::move(owned)] { ++*owned; });
  first();
  Task second = std::move(first);
  CHECK_FALSE(static_cast<bool>(first));
  second();
  CHECK(*watched.lock() == 2);
  second = Task();
  CHECK(watched.expired());
}

TEST_CASE("assigning a task destroys the one before") {
  auto owned = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = owned;
  Task task([owned = std::move(owned)] {});
  int runs = 0;
  task = Task([&runs] { ++runs; });
  CHECK(watched.expired());
  task();
  CHECK(runs == 1);
}
