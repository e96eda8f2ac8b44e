// A stack by unit, in one list: what was made inside a call stands right behind it.
#include "tessera/shard/kept_calls.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.hpp"

namespace tessera {

KeptCalls::Scope::~Scope() {
  if (calls_ != nullptr) calls_->calls_[place_]->end = calls_->calls_.size();
}

KeptCalls::~KeptCalls() { clear(); }

KeptCalls::Entry& KeptCalls::next(std::size_t unit, std::size_t bytes) {
  if (spare_.empty()) {
    spare_.push_back(std::make_unique<Entry>());
    spare_.reserve(++made_);
    calls_.reserve(made_);
  }
  std::unique_ptr<Entry> entry = std::move(spare_.back());
  spare_.pop_back();
  if (entry->bytes < bytes || entry->room == nullptr) {
    entry->bytes = std::max(bytes, least_room);
    entry->room.reset(static_cast<std::byte*>(::operator new[](entry->bytes, std::align_val_t(room_alignment))));
  }
  entry->unit = unit;
  entry->end = calls_.size() + 1;
  calls_.push_back(std::move(entry));
  return *calls_.back();
}

KeptCalls::Entries::const_iterator KeptCalls::latest(std::size_t unit) const {
  const auto found =
      std::find_if(calls_.rbegin(), calls_.rend(), [&](const auto& entry) { return entry->unit == unit; });
  return found == calls_.rend() ? calls_.end() : found.base() - 1;
}

std::unique_ptr<KeptCalls::Entry> KeptCalls::take_out(std::size_t unit) {
  const auto first = latest(unit);
  if (first == calls_.end()) return nullptr;
  const auto place = static_cast<std::size_t>(first - calls_.begin());
  const std::size_t end = (*first)->end;
  std::unique_ptr<Entry> taken = std::move(calls_[place]);
  for (std::size_t inside = place + 1; inside < end; ++inside) put_away(std::move(calls_[inside]));
  calls_.erase(first, calls_.begin() + static_cast<std::ptrdiff_t>(end));
  for (const std::unique_ptr<Entry>& other : calls_) {
    if (other->end > place) other->end -= end - place;
  }
  return taken;
}

void KeptCalls::require(std::size_t unit, const std::string& unit_name) const {
  const auto call = latest(unit);
  if (call == calls_.end()) {
    throw UsageError(fmt::format(
        "unit {} computes its forward pass again before backward, but no call of forward() of it is left in "
        "this pass: where its windows are opened by hand, open the recompute window, too",
        unit_name));
  }
  if ((*call)->call != nullptr) return;
  throw UsageError(fmt::format("unit {} was skipped in the forward pass: skip its backward window, too", unit_name));
}

KeptCalls::Taken KeptCalls::take(std::size_t unit, const std::string& unit_name) {
  require(unit, unit_name);
  return Taken(*this, take_out(unit));
}

void KeptCalls::drop(std::size_t unit) {
  if (std::unique_ptr<Entry> entry = take_out(unit)) put_away(std::move(entry));
}

void KeptCalls::put_away(std::unique_ptr<Entry> entry) {
  if (entry->call != nullptr) std::exchange(entry->call, nullptr)->~Call();
  spare_.push_back(std::move(entry));
}

void KeptCalls::clear() {
  for (std::unique_ptr<Entry>& entry : calls_) put_away(std::move(entry));
  calls_.clear();
}

}  // namespace tessera
