// Hosts, told apart by what their processes see.
#include "comm/mpi/place.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>

namespace tessera::comm {

std::string host_key() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::array<char, 64> processes{};
  if (::readlink("/proc/self/ns/pid", processes.data(), processes.size() - 1) < 0) processes[0] = '\0';
  return std::string(name.data()) + " " + boot + " " + processes.data();
}

Place place_of(int rank, const std::vector<std::string>& host_keys) {
  Place place{.rank = rank, .ranks = static_cast<int>(host_keys.size()), .hosts = 0, .host_of = {}, .here = {}};
  std::vector<std::string> seen;
  for (const std::string& key : host_keys) {
    const auto found = std::find(seen.begin(), seen.end(), key);
    place.host_of.push_back(static_cast<int>(found - seen.begin()));
    if (found == seen.end()) seen.push_back(key);
  }
  place.hosts = static_cast<int>(seen.size());
  for (int other = 0; other < place.ranks; ++other) {
    if (place.is_here(other)) place.here.push_back(other);
  }
  return place;
}

}  // namespace tessera::comm
