// Groups of the innermost axis are ranks that follow each other.
#include "comm/hosts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "comm/collective_errors.hpp"

namespace tessera::comm {
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

std::string needless_crossing(const Mesh& mesh, const Hosts& hosts) {
  if (hosts.of_rank.empty()) return "";
  const MeshAxis& inner = mesh.axes().back();
  const auto size = static_cast<std::size_t>(inner.size);
  std::vector<int> host_by_host = hosts.of_rank;
  std::sort(host_by_host.begin(), host_by_host.end());
  const std::size_t crossing = crossing_groups(hosts.of_rank, size);
  const std::size_t needed = crossing_groups(host_by_host, size);
  if (crossing <= needed) return "";
  const auto host_name = [&](int host) { return "on " + hosts.names[static_cast<std::size_t>(host)]; };
  return fmt::format(
      "{} of {} groups \"{}\" of the mesh {} are on several hosts, and {} would be if the ranks were numbered host by "
      "host ({}): start them so (mpirun --map-by slot, srun --distribution=block), or what such a group exchanges "
      "travels between hosts",
      crossing, hosts.of_rank.size() / size, inner.name, mesh.text(), needed, ranks_by_value(hosts.of_rank, host_name));
}

}  // namespace tessera::comm
