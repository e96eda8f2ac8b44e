// From a launcher's variables to a server and to those who join it.
#include "comm/rendezvous/meet.hpp"

#include <string>

namespace tessera::comm {

std::unique_ptr<RendezvousServer> serve(const MeetingPlace& place, const Start& start,
                                        std::chrono::milliseconds timeout) {
  if (start.rank != 0) return nullptr;
  ServerOptions options;
  options.endpoint = place.endpoint;
  options.token = place.token;
  options.ranks = start.ranks;
  options.timeout = timeout;
  return std::make_unique<RendezvousServer>(options);
}

MeetingPoint meeting_point(const Environment& environment, const Start& start, std::chrono::milliseconds timeout) {
  MeetingPoint point{.place = meeting_place(environment, start), .server = nullptr};
  point.server = serve(point.place, start, timeout);
  return point;
}

JoinOptions join_options(const MeetingPlace& place, const Start& start, std::chrono::milliseconds timeout) {
  JoinOptions join;
  join.endpoint = place.endpoint;
  join.token = place.token;
  join.rank = start.rank;
  join.ranks = start.ranks;
  join.start_timeout = start_timeout(timeout);
  return join;
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
