// Variables of torchrun and SLURM that say where, and attempts at each of the addresses, one after the other.
#include "comm/rendezvous/join.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <system_error>
#include <thread>

#include "base/hash.hpp"
#include "comm/hosts.hpp"
#include "comm/patience.hpp"
#include "comm/rendezvous/handshake.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {

// ---- the place, from the environment ----

namespace {

constexpr int most_port = 65'535;
constexpr int torch_port = 29'500;  // torchrun's own default
// SLURM's numbers are mapped to these: they are outside of the ports that systems hand out.
constexpr int first_slurm_port = 20'000;
constexpr int slurm_ports = 10'000;
constexpr std::size_t least_token = 16;

std::string host_of(const Environment& environment) {
  if (auto host = text_in(environment, "MASTER_ADDR")) return *host;
  if (text_in(environment, "SLURM_STEP_NUM_NODES") == "1") return "127.0.0.1";
  for (const char* const name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    if (const auto list = text_in(environment, name)) return first_of_nodes(*list);
  }
  throw UsageError("the environment does not say where the ranks meet: set MASTER_ADDR to the name of rank 0's host");
}

int slurm_port(const Environment& environment) {
  constexpr std::int64_t any = std::numeric_limits<std::uint32_t>::max();  // a federation's jobs have numbers up to it
  const std::optional<std::int64_t> job = large_number_in(environment, "SLURM_JOB_ID", 0, any);
  if (!job)
    throw UsageError("the environment does not say where the ranks meet: set MASTER_PORT to a port that is free");
  const std::int64_t step = large_number_in(environment, "SLURM_STEP_ID", 0, any).value_or(0);
  // The steps of a job, and jobs that follow each other, have ports of their own.
  return first_slurm_port + static_cast<int>((*job % 100 * 100 + *job / 100 + step) % slurm_ports);
}

// This process's arguments, a zero byte behind each.
std::string own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  return all.substr(std::min(all.size(), all.find('\0') + 1));
}

// The launcher's own name of the job, the same on all of its ranks. Scripts have none, and neither has torchrun unless
// it was given one (it says "none"): without a token what they have started tells their jobs apart.
std::string job_of(const Environment& environment, const Start& start) {
  const auto said = [&](const char* name) { return text_in(environment, name).value_or(""); };
  if (start.launcher == Launcher::slurm) {
    return fmt::format("SLURM job {}, step {}", said("SLURM_JOB_ID"), said("SLURM_STEP_ID"));
  }
  const std::string run = said("TORCHELASTIC_RUN_ID");
  if (!run.empty() && run != "none") return fmt::format("torchrun's run {}", run);
  if (text_in(environment, "TESSERA_TOKEN")) return "";
  std::error_code unknown;
  return name_of_program(own_arguments(), std::filesystem::current_path(unknown).string());
}

int port_of(const Environment& environment, const Start& start) {
  if (const auto port = number_in(environment, "TESSERA_PORT", 1, most_port)) return *port;
  const std::optional<int> port = number_in(environment, "MASTER_PORT", 1, most_port - 1);
  if (!port && start.launcher == Launcher::slurm) return slurm_port(environment);
  const bool taken = text_in(environment, "TORCHELASTIC_USE_AGENT_STORE") == "True";
  return port.value_or(torch_port) + (taken ? 1 : 0);
}

std::string token_of(const Environment& environment) {
  const std::string token = text_in(environment, "TESSERA_TOKEN").value_or("");
  if (!token.empty() && token.size() < least_token) {
    throw UsageError(fmt::format("TESSERA_TOKEN has {} characters, which can be guessed: use at least {}, at random",
                                 token.size(), least_token));
  }
  return token;
}

}  // namespace

std::string name_of_program(std::string_view arguments, std::string_view directory) {
  return fmt::format(
      "the program of hash {:016x} (of its arguments and of where it runs; where ranks of one job differ in them, "
      "TESSERA_TOKEN names it)",
      fnv1a(directory, fnv1a(arguments)));
}

std::string first_of_nodes(const std::string& list) {
  const std::string first = list.substr(0, list.find_first_of(",["));
  if (first.size() == list.size() || list[first.size()] == ',') return first;
  const std::string numbers = list.substr(first.size() + 1);
  return first + numbers.substr(0, numbers.find_first_of("-,]"));
}

MeetingPlace meeting_place(const Environment& environment, const Start& start) {
  const char* const local_rank = start.launcher == Launcher::slurm ? "SLURM_LOCALID" : "LOCAL_RANK";
  return {.endpoint = {.host = host_of(environment), .port = static_cast<std::uint16_t>(port_of(environment, start))},
          .token = token_of(environment),
          .local_rank = number_in(environment, local_rank, 0, 1 << 20).value_or(0),
          .job = job_of(environment, start)};
}

// ---- serving ----

std::unique_ptr<RendezvousServer> serve(const MeetingPlace& place, const Start& start,
                                        std::chrono::milliseconds timeout) {
  if (start.rank != 0) return nullptr;
  return std::make_unique<RendezvousServer>(ServerOptions{
      .endpoint = place.endpoint, .token = place.token, .ranks = start.ranks, .timeout = timeout, .job = place.job});
}

MeetingPoint meeting_point(const Environment& environment, const Start& start, std::chrono::milliseconds timeout) {
  MeetingPoint point{.place = meeting_place(environment, start), .server = nullptr};
  point.server = serve(point.place, start, timeout);
  return point;
}

// ---- joining ----

JoinOptions join_options(const MeetingPlace& place, const Start& start, std::chrono::milliseconds timeout) {
  return {.endpoint = place.endpoint,
          .token = place.token,
          .rank = start.rank,
          .ranks = start.ranks,
          .start_timeout = start_timeout(timeout),
          .job = place.job};
}

namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds between_attempts{50};
constexpr std::chrono::milliseconds between_lookups{500};  // of a name that is not known yet, or behind a refusal
constexpr std::chrono::milliseconds longest_attempt{5'000};

// The server's side of the connection has nothing that this rank wants.
[[noreturn]] void refuse(const JoinOptions& options, const std::string& why) {
  throw UsageError(
      fmt::format("rank {} cannot join the ranks at {}: {}", options.rank, to_string(options.endpoint), why));
}

// Throws DataError that says why an attempt came to nothing.
Frame await(Connection& connection, steady_clock::time_point deadline) {
  for (;;) {
    if (const std::optional<Frame> frame = connection.next()) return *frame;
    if (!wait_for(connection.descriptor(), POLLIN, deadline)) {
      throw DataError("it accepts connections and says nothing");
    }
    if (connection.receive()) continue;
    if (const std::optional<Frame> last = connection.next()) return *last;
    throw DataError("it ended the connection");
  }
}

// Throws DataError for what anybody may say who listens there in rank 0's place, or a server of another job.
void shake_hands(const JoinOptions& options, Connection& connection, steady_clock::time_point deadline) {
  const Secret secret{options.token, options.job};
  Handshake handshake{.server = {},
                      .rank = fresh_nonce(),
                      .rank_number = static_cast<std::uint32_t>(options.rank),
                      .ranks = static_cast<std::uint32_t>(options.ranks)};
  const Frame challenge = await(connection, deadline);
  if (challenge.kind != FrameKind::challenge) throw DataError("its first message is no challenge");
  try {
    handshake.server = read_challenge(challenge.payload);
  } catch (const UsageError& error) {
    throw DataError(error.what());
  }
  connection.send(FrameKind::hello, hello_payload(secret, handshake));
  if (!connection.flush()) throw DataError("it ended the connection");
  const Frame answer = await(connection, deadline);
  if (answer.kind == FrameKind::refusal) {
    const Refusal refusal = read_refusal(answer.payload, secret, handshake);
    if (refusal.proved) refuse(options, refusal.why);
    throw DataError(
        fmt::format("what answers there does not hold the job's token (TESSERA_TOKEN), and says: {}", refusal.why));
  }
  if (is_welcome(answer.payload, secret, handshake)) return;
  throw DataError("what answers there does not hold the job's token (TESSERA_TOKEN)");
}

std::optional<Connection> try_once(const JoinOptions& options, const Address& address, steady_clock::time_point end,
                                   std::string& why, bool& answers) {
  const auto deadline = std::min(end, steady_clock::now() + longest_attempt);
  Socket socket = connect_to(address, deadline, why);
  if (!socket.is_open()) return std::nullopt;
  answers = true;
  Connection connection(std::move(socket), most_handshake_payload);
  try {
    shake_hands(options, connection, deadline);
    return connection;
  } catch (const DataError& error) {
    why = error.what();
    return std::nullopt;
  }
}

}  // namespace

Connection join(const JoinOptions& options, const Resolver& addresses_of) {
  const auto end = steady_clock::now() + options.start_timeout;
  std::string why;
  do {
    const std::vector<Address> addresses = addresses_of(options.endpoint, why);
    bool answers = false;
    const std::string before = why;
    for (const Address& address : addresses) {
      if (auto connection = try_once(options, address, end, why, answers)) return std::move(*connection);
    }
    const bool again = answers && why == before;  // nothing has changed there
    std::this_thread::sleep_for(addresses.empty() || again ? between_lookups : between_attempts);
  } while (steady_clock::now() < end);
  throw CommunicationError(fmt::format(
      "rank {} waited up to {:.3g} s for rank 0 to answer at {}, in vain ({}); is rank 0 running, and is that its "
      "address?",
      options.rank, in_seconds(options.start_timeout), to_string(options.endpoint), why));
}

// ---- introducing ----

namespace {

std::string fresh_token() {
  std::string token;
  for (const char each : fresh_nonce()) token += fmt::format("{:02x}", static_cast<unsigned char>(each));
  return token;
}

// Returns the address of rank 0's host.
std::string address_for(const Place& place) {
  if (place.hosts == 1) return "127.0.0.1";
  const char* const chosen = std::getenv("MASTER_ADDR");
  return chosen == nullptr ? reachable_address() : chosen;
}

}  // namespace

MeetingPoint meet_over(Introduction& introduction, const Start& start, std::chrono::milliseconds timeout) {
  const std::chrono::milliseconds patience = start_timeout(timeout);
  const Place place = find_place(introduction, patience);
  std::string invitation;  // what rank 0 tells the others, by the way that they already have to each other
  MeetingPoint point{.place = {}, .server = nullptr};
  std::exception_ptr failure;
  if (start.rank == 0) {
    try {
      const Endpoint chosen{.host = address_for(place)};
      const std::string token = fresh_token();
      point.server = serve({.endpoint = chosen, .token = token}, start, timeout);
      FieldWriter writer(invitation);
      writer.text(chosen.host);
      writer.text(token);
      writer.number(point.server->port());
    } catch (...) {
      failure = std::current_exception();
    }
  }
  invitation = all_texts(introduction, invitation, patience).front();
  if (failure) std::rethrow_exception(failure);
  if (invitation.empty()) throw CommunicationError("rank 0 cannot listen for the others");
  FieldReader reader(invitation);
  point.place.endpoint.host = reader.text();
  point.place.token = reader.text();
  point.place.endpoint.port = reader.number<std::uint16_t>();
  const auto here = std::find(place.here.begin(), place.here.end(), start.rank);
  point.place.local_rank = static_cast<int>(here - place.here.begin());
  return point;
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
