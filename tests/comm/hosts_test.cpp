// Which ranks share a host, from what each of them says of its own.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "comm/hosts.hpp"

using tessera::comm::Place;
using tessera::comm::place_of;

TEST_CASE("ranks_of_equal_keys_share_a_host_wherever_they_stand") {
  const std::vector<std::string> keys = {"a", "b", "a", "c", "b", "a", "a"};
  const Place third = place_of(2, keys);
  CHECK(third.ranks == 7);
  CHECK(third.hosts == 3);
  CHECK(third.host_of == std::vector<int>{0, 1, 0, 2, 1, 0, 0});
  CHECK(third.here == std::vector<int>{0, 2, 5, 6});
  CHECK(third.leader() == 0);
  CHECK_FALSE(third.leads());
  CHECK(third.is_here(6));
  CHECK_FALSE(third.is_here(1));
  const Place alone = place_of(3, keys);
  CHECK(alone.here == std::vector<int>{3});
  CHECK(alone.leads());
}

TEST_CASE("one_rank_is_one_host") {
  const Place place = place_of(0, {"a"});
  CHECK(place.hosts == 1);
  CHECK(place.leads());
}

TEST_CASE("a_process_shares_a_host_with_itself") {
  CHECK(tessera::comm::host_key() == tessera::comm::host_key());
  CHECK_FALSE(tessera::comm::host_key().empty());
}
