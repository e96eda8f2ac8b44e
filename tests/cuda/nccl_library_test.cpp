// How NCCL is opened: which releases will do, who keeps the order of launches, and that it is never closed. Over a
// library that only has the names (nccl_symbols.cpp, whose path is TESSERA_TEST_NCCL).
#include "comm/nccl/nccl_library.hpp"

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "tessera/base/error.hpp"

using namespace tessera;
using namespace tessera::comm;

namespace {

constexpr const char* order = "NCCL_LAUNCH_ORDER_IMPLICIT";
constexpr const char* sharing = "NCCL_MULTI_RANK_GPU_ENABLE";

std::string path() { return std::getenv("TESSERA_TEST_NCCL"); }

// With these variables; null: not set.
std::unique_ptr<NcclLibrary> opened(const char* version, const char* order_value, const char* sharing_value) {
  const auto set = [](const char* name, const char* value) {
    value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  };
  set("TESSERA_TEST_NCCL_VERSION", version);
  set(order, order_value);
  set(sharing, sharing_value);
  return open_nccl(path());
}

bool is_loaded() {
  void* const library = ::dlopen(path().c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library != nullptr) ::dlclose(library);
  return library != nullptr;
}

}  // namespace

TEST_CASE("nccl keeps the order of launches from 2.26 on, unless the environment says otherwise") {
  CHECK(opened("22902", nullptr, nullptr)->orders_launches());
  CHECK(std::string(std::getenv(order)) == "1");
  CHECK_FALSE(opened("22902", "0", nullptr)->orders_launches());
  CHECK_FALSE(opened("22503", nullptr, nullptr)->orders_launches());
}

TEST_CASE("where ranks may share a device, nccl never orders the launches of one behind those of another") {
  for (const char* const said : {static_cast<const char*>(nullptr), "0", "1"}) {
    const auto nccl = opened("23007", said, "1");
    CHECK(nccl->shares_devices());
    CHECK_FALSE(nccl->orders_launches());
    CHECK(std::string(std::getenv(order)) == "0");
  }
}

TEST_CASE(
    "a split of a parent that does not block stores its child where the caller keeps it, when the parent is done") {
  const auto nccl = opened("22902", nullptr, nullptr);
  int parent = 0;
  NcclLibrary::Handle child = nullptr;
  CHECK(nccl->split(child, &parent, 0, {.rank = 0, .ranks = 1, .name = "child"}) == NcclState::in_progress);
  CHECK(child == nullptr);
  CHECK(nccl->state(&parent) == NcclState::done);
  CHECK(child != nullptr);
}

TEST_CASE("ranks share a device from 2.30 on, when the environment lets them") {
  CHECK_FALSE(opened("23007", nullptr, nullptr)->shares_devices());
  CHECK_FALSE(opened("23007", nullptr, "0")->shares_devices());
  CHECK_FALSE(opened("22902", nullptr, "1")->shares_devices());
}

TEST_CASE("nccl stays in the process when nobody uses it any more") {
  opened("22902", nullptr, nullptr).reset();
  CHECK(is_loaded());
}

TEST_CASE("an nccl that is too old, or not there, is named with what to do") {
  CHECK_THROWS_WITH_AS(opened("21700", nullptr, nullptr), doctest::Contains("2.18.1 is the oldest that will do"),
                       UnavailableError);
  CHECK_THROWS_WITH_AS(open_nccl("/nowhere/libnccl.so.2"), doctest::Contains("name another with TESSERA_NCCL"),
                       UnavailableError);
}
