// An event for each window that kept something, used again by later ones.
#include "shard/kept_objects.hpp"

#include <algorithm>

namespace tessera {

void KeptObjects::keep(Objects objects, Stream& stream) {
  if (objects.empty()) return;
  if (spare_.empty()) spare_.emplace_back(stream.device(), "work on kept objects");
  stream.record(spare_.back());
  waiting_.push_back({std::move(spare_.back()), std::move(objects)});
  spare_.pop_back();
}

void KeptObjects::release() {
  const auto still =
      std::find_if(waiting_.begin(), waiting_.end(), [](const Waiting& each) { return !each.done.complete(); });
  for (auto gone = waiting_.begin(); gone != still; ++gone) spare_.push_back(std::move(gone->done));
  waiting_.erase(waiting_.begin(), still);
}

}  // namespace tessera
