// Only memory that a rank of this user has made to share is mapped, whatever file a stranger names.
#include "comm/processes/shared_memory.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "tessera/base/error.hpp"

using namespace tessera;
using namespace tessera::comm;

TEST_CASE("memory_that_a_rank_shares_is_mapped_and_no_other_file_is") {
  constexpr Bytes size{8192};
  const SharedMemory mine = SharedMemory::make("test", size);
  const SharedMemory theirs = SharedMemory::open(mine.file());
  mine.data()[5] = std::byte{7};
  CHECK(theirs.data()[5] == std::byte{7});

  const auto refused = [&](int descriptor) {
    REQUIRE(descriptor >= 0);
    CHECK_THROWS_WITH_AS(SharedMemory::open({.owner = ::getpid(), .descriptor = descriptor, .size = size}),
                         doctest::Contains("is none: does another program answer in a rank's place?"),
                         CommunicationError);
    ::close(descriptor);
  };
  std::string path = "/tmp/tessera_shared_XXXXXX";
  const int named = ::mkstemp(path.data());
  REQUIRE(::ftruncate(named, size.count()) == 0);
  const int removed = ::dup(named);
  refused(named);
  ::unlink(path.c_str());
  refused(removed);
  const int unsealed = ::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(::ftruncate(unsealed, size.count()) == 0);
  refused(unsealed);
  SharedFile longer = mine.file();
  longer.size += Bytes(4096);
  CHECK_THROWS_AS(SharedMemory::open(longer), CommunicationError);
}
