// What stands in a buffer: whose content it is, and which of its bytes were written since the tenant took it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "plan/overlap.hpp"

namespace tessera::plan {

class Contents {
 public:
  void write(std::size_t tenant, Interval bytes) {
    if (tenant != tenant_) written_.clear();
    tenant_ = tenant;
    insert(bytes);
  }
  // Where this rank's shard stands, and those of all ranks.
  struct Shards {
    Interval mine;
    Interval all;
  };
  // All ranks write their shards at once: what stands here of the others' is out of date.
  void write_shard(std::size_t tenant, Interval bytes, Shards shards) {
    const Interval current[] = {{0, shards.all.begin}, shards.mine, {shards.all.end, static_cast<std::uint64_t>(-1)}};
    std::vector<Interval> kept;
    for (const Interval& known : written_) {
      for (const Interval& part : current) {
        const Interval both{std::max(known.begin, part.begin), std::min(known.end, part.end)};
        if (both.begin < both.end) kept.push_back(both);
      }
    }
    written_ = std::move(kept);
    write(tenant, bytes);
  }
  void discard() { written_.clear(); }
  bool readable(std::size_t tenant, Interval bytes) const {
    if (bytes.begin >= bytes.end) return true;
    if (tenant != tenant_) return false;
    return std::any_of(written_.begin(), written_.end(), [&](const Interval& known) { return contains(known, bytes); });
  }

  std::size_t tenant() const { return tenant_; }
  const std::vector<Interval>& written() const { return written_; }

 private:
  // Keeps the intervals sorted, disjoint and not touching.
  void insert(Interval bytes) {
    if (bytes.begin >= bytes.end) return;
    auto first = std::lower_bound(written_.begin(), written_.end(), bytes.begin,
                                  [](const Interval& known, std::uint64_t begin) { return known.end < begin; });
    auto last = first;
    for (; last != written_.end() && last->begin <= bytes.end; ++last) {
      bytes.begin = std::min(bytes.begin, last->begin);
      bytes.end = std::max(bytes.end, last->end);
    }
    first = written_.erase(first, last);
    written_.insert(first, bytes);
  }

  std::size_t tenant_ = no_unit;
  std::vector<Interval> written_;
};

}  // namespace tessera::plan
