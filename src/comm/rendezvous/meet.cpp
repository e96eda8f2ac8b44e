// From a launcher's variables to a server and to those who join it.
#include "comm/rendezvous/meet.hpp"

#include <string>

namespace tessera::comm {

std::unique_ptr<RendezvousServer> serve(const MeetingPlace& place, const Start& start,
                                        std::chrono::milliseconds timeout) {
  if (start.rank != 0) return nullptr;
  return std::make_unique<RendezvousServer>(
      ServerOptions{.endpoint = place.endpoint, .token = place.token, .ranks = start.ranks, .timeout = timeout});
}

MeetingPoint meeting_point(const Environment& environment, const Start& start, std::chrono::milliseconds timeout) {
  MeetingPoint point{.place = meeting_place(environment, start), .server = nullptr};
  point.server = serve(point.place, start, timeout);
  return point;
}

JoinOptions join_options(const MeetingPlace& place, const Start& start, std::chrono::milliseconds timeout) {
  return {.endpoint = place.endpoint,
          .token = place.token,
          .rank = start.rank,
          .ranks = start.ranks,
          .start_timeout = start_timeout(timeout)};
}

std::vector<std::byte> RendezvousIntroduction::all_gather(std::span<const std::byte> mine, std::chrono::milliseconds) {
  const Signature signature{.kind = CollectiveKind::all_gather,
                            .label = "introduction",
                            .bytes = Bytes(mine.size()),
                            .sequence = ++gathered_};
  const std::string_view blob(reinterpret_cast<const char*>(mine.data()), mine.size());
  std::vector<std::byte> all;
  for (const std::string& each : control_.exchange(channel_, signature, blob)) {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(each));
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

}  // namespace tessera::comm
