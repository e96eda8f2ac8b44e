// Hosts, told apart by what their processes see. Groups of a mesh's innermost axis are ranks that follow each other.
#include "comm/hosts.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <fstream>

#include "comm/collective_errors.hpp"

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
  Place place;
  place.rank = rank;
  place.ranks = static_cast<int>(host_keys.size());
  std::vector<std::string> seen;
  for (const std::string& key : host_keys) {
    const auto found = std::find(seen.begin(), seen.end(), key);
    place.host_of.push_back(static_cast<int>(found - seen.begin()));
    if (found == seen.end()) seen.push_back(key);
  }
  place.hosts = static_cast<int>(seen.size());
  for (const std::string& key : seen) place.host_names.push_back(key.substr(0, key.find(' ')));
  for (int other = 0; other < place.ranks; ++other) {
    if (place.is_here(other)) place.here.push_back(other);
  }
  return place;
}

Place find_place(Introduction& introduction, std::chrono::milliseconds timeout) {
  return place_of(introduction.rank(), all_texts(introduction, host_key(), timeout));
}

namespace {

cpu_set_t own_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  ::sched_getaffinity(0, sizeof(cores), &cores);
  return cores;
}

}  // namespace

// A rank that the launcher has bound owns its cores; ranks that share cores divide them.
int cores_per_rank(Introduction& introduction, const Place& place, std::chrono::milliseconds timeout) {
  const std::vector<cpu_set_t> all = all_values(introduction, own_cores(), timeout);
  cpu_set_t together;
  CPU_ZERO(&together);
  for (const int rank : place.here) CPU_OR(&together, &together, &all[static_cast<std::size_t>(rank)]);
  const int mine = CPU_COUNT(&all[static_cast<std::size_t>(place.rank)]);
  const int share = CPU_COUNT(&together) / static_cast<int>(place.here.size());
  return std::max(1, std::min(mine, share));
}

namespace {

std::size_t crossing_groups(const std::vector<int>& host_of, std::size_t size) {
  std::size_t crossing = 0;
  for (auto first = host_of.begin(); first != host_of.end(); first += static_cast<std::ptrdiff_t>(size)) {
    const auto is_elsewhere = [&](int host) { return host != *first; };
    if (std::any_of(first, first + static_cast<std::ptrdiff_t>(size), is_elsewhere)) ++crossing;
  }
  return crossing;
}

}  // namespace

std::string needless_crossing(const Mesh& mesh, const Place& place) {
  if (place.host_of.empty()) return "";
  const MeshAxis& inner = mesh.axes().back();
  const auto size = static_cast<std::size_t>(inner.size);
  std::vector<int> host_by_host = place.host_of;
  std::sort(host_by_host.begin(), host_by_host.end());
  const std::size_t crossing = crossing_groups(place.host_of, size);
  const std::size_t needed = crossing_groups(host_by_host, size);
  if (crossing <= needed) return "";
  const auto host_name = [&](int host) { return "on " + place.host_names[static_cast<std::size_t>(host)]; };
  return fmt::format(
      "{} of {} groups \"{}\" of the mesh {} are on several hosts, and {} would be if the ranks were numbered host by "
      "host ({}): start them so (mpirun --map-by slot, srun --distribution=block), or what such a group exchanges "
      "travels between hosts",
      crossing, place.host_of.size() / size, inner.name, mesh.text(), needed, ranks_by_value(place.host_of, host_name));
}

}  // namespace tessera::comm
