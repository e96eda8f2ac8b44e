// The rendezvous over real sockets: who is admitted, what travels, and who hears of whose failure.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "../error_text.hpp"
#include "../sanitizers/sanitizers.hpp"
#include "comm/rendezvous/handshake.hpp"
#include "rendezvous_ranks.hpp"
#include "tessera/base/error.hpp"

using namespace tessera;
using namespace tessera::comm;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

// Far below the jobs' 60 s and far above what news needs to travel.
constexpr std::chrono::seconds at_once{20};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const Signature meeting{.kind = CollectiveKind::all_gather, .label = "hosts", .sequence = 1};

// Passes when everything that a rank does with the others comes out.
void check_exchange(Control& control) {
  const std::string own = "rank " + std::to_string(control.rank());
  const Control::Opened opened = control.open("control", std::nullopt, own);
  if (opened.channel != 1) throw std::runtime_error("the first channel is 1");
  for (int rank = 0; rank < control.size(); ++rank) {
    if (opened.blobs[static_cast<std::size_t>(rank)] != "rank " + std::to_string(rank)) {
      throw std::runtime_error("a blob is not its rank's");
    }
  }
  for (std::uint64_t sequence = 1; sequence < 20; ++sequence) {
    const Signature barrier{.kind = CollectiveKind::barrier, .label = "round", .sequence = sequence};
    const auto blobs = control.exchange(1, barrier, std::string(sequence % 3, 'x'));
    if (blobs.size() != static_cast<std::size_t>(control.size())) throw std::runtime_error("a blob for each rank");
    if (blobs.back() != std::string(sequence % 3, 'x')) throw std::runtime_error("blobs of this round");
  }
}

Socket stranger(const Meeting& meeting_at) {
  std::string why;
  for (const Address& address : resolve(meeting_at.endpoint())) {
    Socket socket = connect_to(address, steady_clock::now() + at_once, why);
    if (socket.is_open()) return socket;
  }
  return Socket();
}

// Whether the other side ends the connection, whatever it says first.
bool is_ended(Socket& socket, steady_clock::time_point deadline) {
  std::array<char, 4096> bytes;
  while (wait_for(socket.descriptor(), POLLIN, deadline)) {
    if (!socket.read_some(bytes)) return true;
  }
  return false;
}

std::string refusal_to_listen(const std::string& host, std::uint16_t port, const std::string& token) {
  auto options = std::make_unique<ServerOptions>();
  options->endpoint.host = host;
  options->endpoint.port = port;
  options->token = token;
  return tests::error_text<UsageError>([&] { const RendezvousServer server(*options); });
}

bool has_ipv6_loopback() {
  try {
    std::vector<Address> addresses = resolve({.host = "::1", .port = 0});
    return listen_at(addresses.front()).is_open();
  } catch (const std::exception&) {
    return false;
  }
}

// A connection that was challenged, and takes its time.
class Guest {
 public:
  explicit Guest(const JoinOptions& options) : connection_(connected_to(options.endpoint), most_handshake_payload) {
    const Frame challenge = await();
    REQUIRE(challenge.kind == FrameKind::challenge);
    nonce_ = read_challenge(challenge.payload);
  }

  void say_hello(const JoinOptions& options) {
    const Handshake handshake{.server = nonce_,
                              .rank = fresh_nonce(),
                              .rank_number = static_cast<std::uint32_t>(options.rank),
                              .ranks = static_cast<std::uint32_t>(options.ranks)};
    connection_.send(FrameKind::hello, hello_payload({options.token, options.job}, handshake));
    REQUIRE(connection_.flush());
  }
  FrameKind answer() { return await().kind; }

 private:
  static Socket connected_to(const Endpoint& endpoint) {
    std::string why;
    return connect_to(resolve(endpoint).front(), steady_clock::now() + at_once, why);
  }
  Frame await() {
    std::optional<Frame> frame = connection_.next();
    for (; !frame; frame = connection_.next()) {
      REQUIRE(wait_for(connection_.descriptor(), POLLIN, steady_clock::now() + at_once));
      REQUIRE(connection_.receive());
    }
    return *frame;
  }

  Connection connection_;
  std::string nonce_;
};

// ThreadSanitizer ends a child of several threads that starts its own.
constexpr bool forked_ranks_may_thread = !TESSERA_THREAD_SANITIZER;

}  // namespace

TEST_CASE("ranks_from_one_to_seven_meet_and_exchange") {
  for (int ranks = 1; ranks <= 7; ++ranks) {
    CAPTURE(ranks);
    const Meeting place({.ranks = ranks});
    for (const std::string& text : place.run(check_exchange)) CHECK(text == "");
  }
}

TEST_CASE("ranks_that_are_processes_meet_and_exchange" * doctest::skip(!forked_ranks_may_thread)) {
  for (const int ranks : {2, 5}) {
    CAPTURE(ranks);
    const Meeting place({.ranks = ranks});
    std::vector<pid_t> children;
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t child = ::fork();
      if (child == 0) {
        try {
          const std::unique_ptr<Control> joined = join_rendezvous(place.join_options(rank), at_once);
          Control& control = *joined;
          check_exchange(control);
          control.leave();
        } catch (...) {
          ::_exit(1);
        }
        ::_exit(0);
      }
      children.push_back(child);
    }
    for (const pid_t child : children) {
      int status = -1;
      CHECK(::waitpid(child, &status, 0) == child);
      CHECK(status == 0);
    }
  }
}

TEST_CASE("address_of_a_kind_that_this_kernel_lacks_does_not_keep_a_rank_from_the_others") {
  Address foreign{.bytes = {}, .size = sizeof(sockaddr_storage)};
  foreign.bytes.ss_family = AF_MAX;
  std::string why;
  CHECK_FALSE(connect_to(foreign, steady_clock::now() + at_once, why).is_open());
  CHECK(why != "");
  const Meeting place({.ranks = 1});
  const Resolver both = [&](const Endpoint& endpoint, std::string& reason) {
    std::vector<Address> addresses = addresses_of(endpoint, reason);
    addresses.insert(addresses.begin(), foreign);
    return addresses;
  };
  CHECK(join(place.join_options(0), both).descriptor() >= 0);
}

TEST_CASE("name_that_is_not_known_yet_is_asked_for_again") {
  const Meeting place({.ranks = 1});
  int lookups = 0;
  const Resolver late = [&](const Endpoint& endpoint, std::string& why) {
    if (++lookups > 2) return addresses_of(endpoint, why);
    return why = "it has no address: not yet", std::vector<Address>();
  };
  CHECK(join(place.join_options(0), late).descriptor() >= 0);
  CHECK(lookups == 3);
}

TEST_CASE("name_that_nobody_ever_knows_is_named_after_the_deadline") {
  const JoinOptions options{.endpoint = {.host = "no-such-host.invalid", .port = 29'500},
                            .token = "a token of this test",
                            .rank = 1,
                            .ranks = 2,
                            .start_timeout = milliseconds(100)};
  const std::string text = tests::error_text<CommunicationError>([&] { join(options); });
  CHECK(has(text, "no-such-host.invalid:29500"));
  CHECK(has(text, "has no address"));
}

TEST_CASE("ipv6_loopback_is_a_meeting_place_too") {
  if (!has_ipv6_loopback()) return;
  const Meeting place({.ranks = 3, .host = "::1"});
  for (const std::string& text : place.run(check_exchange)) CHECK(text == "");
}

// Whoever refuses without having proved itself may be anybody: the rank goes on trying.
TEST_CASE("a_wrong_token_is_refused_and_the_others_meet") {
  const Meeting place({.ranks = 2});
  JoinOptions wrong = place.join_options(1);
  wrong.token = "another token than the job's";
  wrong.start_timeout = milliseconds(200);
  const std::string text = tests::error_text<CommunicationError>([&] { join_rendezvous(wrong, at_once); });
  CHECK(has(text, "rank 1 waited up to 0.2 s for rank 0 to answer"));
  CHECK(has(text, "TESSERA_TOKEN"));
  for (const std::string& each : place.run(check_exchange)) CHECK(each == "");
}

// Returns what a rank says after the deadline when a stranger stands in rank 0's place and answers so.
std::string text_before(FrameKind kind, const std::string& answer) {
  Address address = resolve({.host = "127.0.0.1", .port = 0}).front();
  const Socket listener = listen_at(address);
  std::atomic<bool> over = false;
  std::thread stranger([&] {
    while (!over) {
      if (!wait_for(listener.descriptor(), POLLIN, steady_clock::now() + milliseconds(50))) continue;
      auto accepted = accept_from(listener);
      if (!accepted) continue;
      Connection connection(std::move(accepted->socket), Bytes(4096));
      connection.send(FrameKind::challenge, challenge_payload(fresh_nonce()));
      connection.flush();
      wait_for(connection.descriptor(), POLLIN, steady_clock::now() + at_once);
      connection.receive();
      connection.send(kind, answer);
      connection.flush();
    }
  });
  const std::string text = tests::error_text<CommunicationError>([&] {
    join({.endpoint = {"127.0.0.1", address.port()},
          .token = "the job's own token",
          .ranks = 2,
          .start_timeout = milliseconds(300)});
  });
  over = true;
  stranger.join();
  return text;
}

TEST_CASE("what_a_stranger_says_is_neither_obeyed_nor_printed_as_it_is") {
  CHECK(has(text_before(FrameKind::welcome, std::string(proof_bytes, 'x')), "does not hold the job's token"));
  const std::string text = text_before(FrameKind::refusal, refusal_payload({}, {}, "\x1b[2J\nerror: all is well"));
  CHECK(has(text, "does not hold the job's token (TESSERA_TOKEN), and says: \\x1b[2J\\x0aerror: all is well"));
  CHECK(text.find('\n') == std::string::npos);
}

TEST_CASE("two_jobs_at_one_port_are_told_apart_by_their_launchers_names_without_a_token_too") {
  const Meeting place({.ranks = 2, .token = "", .job = "SLURM job 101, step 0"});
  JoinOptions other = place.join_options(1);
  other.job = "SLURM job 102, step 0";
  other.start_timeout = milliseconds(200);
  const std::string text = tests::error_text<CommunicationError>([&] { join_rendezvous(other, at_once); });
  CHECK(has(text, "it is rank 1 of SLURM job 102, step 0, and this is SLURM job 101, step 0"));
  for (const std::string& each : place.run(check_exchange)) CHECK(each == "");
}

TEST_CASE("a_name_that_gets_its_address_late_is_asked_for_again_by_rank_0_and_by_the_others") {
  int asked = 0;
  const RendezvousServer server({.endpoint = {.host = "127.0.0.1"}, .addresses_of = [&](const Endpoint& endpoint) {
                                   if (asked++ == 0) throw UsageError("not known yet");
                                   return resolve(endpoint);
                                 }});
  int looked = 0;
  const Connection joined = join({.endpoint = {"127.0.0.1", server.port()}, .start_timeout = at_once},
                                 [&](const Endpoint& endpoint, std::string& why) {
                                   return looked++ == 0 ? std::vector<Address>() : addresses_of(endpoint, why);
                                 });
  CHECK(asked == 2);
  CHECK(looked == 2);
}

// Each rank goes on as fast as it can: rank 1 comes for the next job while the server of the last one still ends.
TEST_CASE("one_job_after_the_other_meets_at_the_same_port") {
  std::uint16_t port = 0;
  {
    const RendezvousServer probe({.endpoint = {.host = "127.0.0.1"}});
    port = probe.port();
  }
  const auto jobs = [&](int rank) {
    for (int job = 0; job < 20; ++job) {
      std::optional<RendezvousServer> server;
      if (rank == 0) server.emplace(ServerOptions{.endpoint = {"127.0.0.1", port}, .ranks = 2});
      const std::unique_ptr<Control> joined =
          join_rendezvous({.endpoint = {"127.0.0.1", port}, .rank = rank, .ranks = 2}, at_once);
      CHECK_NOTHROW(check_exchange(*joined));
      joined->leave();
      if (rank == 0) std::this_thread::sleep_for(milliseconds(2));
    }
  };
  std::thread other([&] { CHECK_NOTHROW(jobs(1)); });
  CHECK_NOTHROW(jobs(0));
  other.join();
}

TEST_CASE("time_in_which_the_processes_were_stopped_does_not_count" * doctest::skip(!forked_ranks_may_thread)) {
  const pid_t job = ::fork();
  REQUIRE(job >= 0);
  if (job == 0) {
    const Meeting place({.ranks = 2, .timeout = milliseconds(1000)});
    const std::vector<std::string> texts = place.run([](Control& control) {
      for (int i = 0; i < 6 && control.rank() == 1; ++i) std::this_thread::sleep_for(milliseconds(100));
      check_exchange(control);
    });
    ::_exit(texts[0].empty() && texts[1].empty() ? 0 : 1);
  }
  std::this_thread::sleep_for(milliseconds(300));
  REQUIRE(::kill(job, SIGSTOP) == 0);
  std::this_thread::sleep_for(milliseconds(2500));
  REQUIRE(::kill(job, SIGCONT) == 0);
  int status = 0;
  REQUIRE(::waitpid(job, &status, 0) == job);
  CHECK(status == 0);
}

TEST_CASE("without_a_token_only_the_loopback_interface_will_do") {
  for (const char* const host : {"0.0.0.0", "::"}) {
    CAPTURE(host);
    CHECK(has(refusal_to_listen(host, 0, ""), "TESSERA_TOKEN"));
  }
  const Meeting place({.ranks = 2, .token = ""});
  for (const std::string& text : place.run(check_exchange)) CHECK(text == "");
}

TEST_CASE("an_address_that_is_not_this_hosts_is_an_error_that_names_it") {
  const std::string text = refusal_to_listen("192.0.2.1", 29'500, "a token of this test");
  CHECK(has(text, "192.0.2.1:29500"));
  CHECK(has(text, "MASTER_ADDR"));
}

TEST_CASE("a_flood_of_a_thousand_connections_keeps_nobody_out_and_is_not_kept") {
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
  ::setrlimit(RLIMIT_NOFILE, &files);
  const Meeting place({.ranks = 3});
  std::vector<Socket> flood;
  for (int i = 0; i < 500; ++i) flood.push_back(stranger(place));
  std::atomic<bool> over = false;
  std::thread more([&] {
    for (int i = 0; i < 500 && !over; ++i) flood.push_back(stranger(place));
  });
  const std::vector<std::string> texts = place.run(check_exchange);
  over = true;
  more.join();
  for (const std::string& text : texts) CHECK(text == "");
  // Silent connections are kept only as far as there are places.
  const auto ended = std::count_if(flood.begin(), flood.end(), [](Socket& socket) {
    return is_ended(socket, steady_clock::now() + milliseconds(1));
  });
  CHECK(ended >= static_cast<std::ptrdiff_t>(flood.size()) - 70);
}

// Each connects and goes without a word, which leaves nothing of the connection behind.
TEST_CASE("a_flood_that_does_not_end_keeps_nobody_out") {
  const Meeting place({.ranks = 3});
  const Address to = resolve(place.endpoint()).front();
  std::atomic<bool> over = false;
  std::vector<std::thread> flood;
  for (int thread = 0; thread < 3; ++thread) {
    flood.emplace_back([&] {
      while (!over) {
        const Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        const linger nothing_left{.l_onoff = 1, .l_linger = 0};
        ::setsockopt(socket.descriptor(), SOL_SOCKET, SO_LINGER, &nothing_left, sizeof(nothing_left));
        static_cast<void>(::connect(socket.descriptor(), reinterpret_cast<const sockaddr*>(&to.bytes), to.size));
      }
    });
  }
  const std::vector<std::string> texts = place.run(check_exchange);
  over = true;
  for (std::thread& thread : flood) thread.join();
  for (const std::string& text : texts) CHECK(text == "");
}

TEST_CASE("garbage_and_slow_guests_are_sent_away_and_keep_nobody_waiting") {
  const Meeting place({.ranks = 2, .handshake_time = milliseconds(300)});
  Socket loud = stranger(place);
  Socket slow = stranger(place);
  Socket half_open = stranger(place);
  loud.write_some("GET / HTTP/1.1\r\n\r\n" + std::string(100'000, 'x'));
  std::atomic<bool> over = false;
  std::thread dripping([&] {
    while (!over && slow.write_some(std::string(1, '\0'))) std::this_thread::sleep_for(milliseconds(20));
  });
  for (const std::string& text : place.run(check_exchange)) CHECK(text == "");
  CHECK(is_ended(loud, steady_clock::now() + at_once));
  CHECK(is_ended(half_open, steady_clock::now() + at_once));
  dripping.join();  // by itself: its time is over
  over = true;
}

TEST_CASE("a_rank_that_never_comes_is_named_at_the_deadline") {
  const Meeting place({.ranks = 4, .timeout = milliseconds(300)});
  const std::vector<std::string> texts = place.run(check_exchange, 1);  // rank 0's client is the one that does not come
  CHECK(texts[0] == "");
  for (int rank = 1; rank < 4; ++rank) {
    CHECK(has(texts[static_cast<std::size_t>(rank)],
              "ranks 1-3 waited up to 0.3 s in make_communicator \"control\" for rank 0"));
  }
}

TEST_CASE("who_was_refused_stands_in_the_deadlines_text") {
  const Meeting place({.ranks = 2, .timeout = milliseconds(300)});
  JoinOptions wrong = place.join_options(0);
  wrong.token = "another token than the job's";
  wrong.start_timeout = milliseconds(100);
  CHECK_THROWS_AS(join_rendezvous(wrong, at_once), CommunicationError);
  const std::vector<std::string> texts = place.run(check_exchange, 1);
  CHECK(has(texts[1], "refused, the last from 127.0.0.1:"));
  CHECK(has(texts[1], "it does not hold the job's token"));
}

TEST_CASE("a_server_that_never_comes_is_named_at_the_deadline") {
  std::uint16_t port = 0;
  {
    Address address = resolve({.host = "127.0.0.1", .port = 0}).front();
    const Socket listener = listen_at(address);
    port = address.port();
  }
  const JoinOptions options{.endpoint = {"127.0.0.1", port}, .rank = 3, .ranks = 4, .start_timeout = milliseconds(200)};
  const std::string text = tests::error_text<CommunicationError>([&] { join(options); });
  CHECK(has(text, "rank 3 waited up to 0.2 s for rank 0"));
  CHECK(has(text, "127.0.0.1:" + std::to_string(port)));
  CHECK(has(text, "refused"));
}

TEST_CASE("a_second_rank_of_the_same_number_is_refused_and_the_first_stays") {
  const Meeting place({.ranks = 2});
  const std::unique_ptr<Control> joined = join_rendezvous(place.join_options(1), at_once);
  Control& first = *joined;
  const std::string text = tests::error_text<UsageError>([&] { join_rendezvous(place.join_options(1), at_once); });
  CHECK(has(text, "rank 1 is there already"));
  std::thread zero([&] {
    const std::unique_ptr<Control> other = join_rendezvous(place.join_options(0), at_once);
    Control& control = *other;
    CHECK_NOTHROW(check_exchange(control));
    control.leave();
  });
  CHECK_NOTHROW(check_exchange(first));
  first.leave();
  zero.join();
}

TEST_CASE("of_two_that_say_at_once_that_they_are_a_rank_one_is_refused") {
  for (int round = 0; round < 30; ++round) {
    const Meeting place({.ranks = 2});
    const JoinOptions options = place.join_options(1);
    std::vector<Guest> guests;
    for (int guest = 0; guest < 2; ++guest) guests.emplace_back(options);
    for (Guest& guest : guests) guest.say_hello(options);
    std::vector<FrameKind> answers;
    for (Guest& guest : guests) answers.push_back(guest.answer());
    CHECK(std::count(answers.begin(), answers.end(), FrameKind::welcome) == 1);
    CHECK(std::count(answers.begin(), answers.end(), FrameKind::refusal) == 1);
  }
}

TEST_CASE("a_rank_of_another_world_size_is_refused") {
  const Meeting place({.ranks = 2});
  JoinOptions other = place.join_options(1);
  other.ranks = 3;
  const std::string text = tests::error_text<UsageError>([&] { join_rendezvous(other, at_once); });
  CHECK(has(text, "rank 1 of a job of 3 ranks, and this one has 2"));
  other = place.join_options(1);
  other.rank = 2;
  CHECK(has(tests::error_text<UsageError>([&] { join_rendezvous(other, at_once); }), "none of the job's"));
}

TEST_CASE("another_version_is_refused_on_both_sides") {
  const Meeting place({.ranks = 1});
  Connection connection(stranger(place), most_handshake_payload);
  std::string payload = hello_payload({.token = "a token of this test"}, {.ranks = 1});
  payload[8] = 9;  // the version, after the eight letters
  connection.send(FrameKind::hello, payload);
  REQUIRE(connection.flush());
  std::string answer;
  while (answer.empty() && wait_for(connection.descriptor(), POLLIN, steady_clock::now() + at_once)) {
    const bool there = connection.receive();
    while (const auto frame = connection.next()) {
      if (frame->kind == FrameKind::refusal) answer = frame->payload;
    }
    if (!there) break;
  }
  CHECK(has(answer, "version " + std::to_string(rendezvous_version) + " of the rendezvous met version 9"));

  std::string challenge = challenge_payload(fresh_nonce());
  challenge[8] = 9;
  CHECK(has(tests::error_text<UsageError>([&] { read_challenge(challenge); }), "met version 9"));
}

TEST_CASE("a_rank_that_dies_is_named_on_all_others" * doctest::skip(!forked_ranks_may_thread)) {
  const Meeting place({.ranks = 4});
  const auto start = steady_clock::now();
  const pid_t child = ::fork();
  if (child == 0) {
    const std::unique_ptr<Control> joined = join_rendezvous(place.join_options(0), at_once);
    Control& control = *joined;
    control.open("control", std::nullopt, "");
    ::kill(::getpid(), SIGKILL);
  }
  const std::vector<std::string> texts = place.run(
      [](Control& control) {
        control.open("control", std::nullopt, "");
        control.exchange(1, meeting, "");
      },
      1);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
  CHECK(steady_clock::now() - start < at_once);
  for (int rank = 1; rank < 4; ++rank) {
    CHECK(has(texts[static_cast<std::size_t>(rank)], "the process of rank 0 has ended"));
  }
}

TEST_CASE("the_first_cause_reaches_all_and_a_later_one_does_not") {
  const Meeting place({.ranks = 5});
  const std::vector<std::string> texts = place.run([](Control& control) {
    control.open("control", std::nullopt, "");
    if (control.rank() == 3) throw DataError("train.bin: empty");
    try {
      control.exchange(1, meeting, "");
    } catch (const AbortedError& error) {
      control.abort("a later cause", nullptr);
      CHECK(control.failure()->rank == 3);
      CHECK(control.failure()->cause == "train.bin: empty");
      throw;
    }
  });
  CHECK(texts[3] == "train.bin: empty");
  for (const int rank : {0, 1, 2, 4}) {
    CHECK(texts[static_cast<std::size_t>(rank)] == "rank 3 failed first: train.bin: empty");
  }
}

TEST_CASE("ranks_wait_until_the_first_cause_was_told") {
  const Meeting place({.ranks = 3});
  std::atomic<bool> told = false;
  place.run([&](Control& control) {
    control.open("control", std::nullopt, "");
    if (control.rank() == 2) {
      control.abort("enough", nullptr);
      std::this_thread::sleep_for(milliseconds(50));
      told = true;
      control.say_reported();
    } else {
      while (control.failure() == nullptr) std::this_thread::sleep_for(milliseconds(1));
      CHECK(control.wait_for_report());
      CHECK(told);
    }
  });
}

// Strangers keep the server busy, so that it is in the middle of something when it is ended.
TEST_CASE("what_rank_0_says_last_reaches_the_others") {
  for (int round = 0; round < 50; ++round) {
    auto place = std::make_unique<Meeting>(MeetingOptions{.ranks = 2});
    std::atomic<bool> joined = false;
    std::atomic<bool> ended = false;
    bool heard = false;
    std::thread other([&, options = place->join_options(1)] {
      const std::unique_ptr<Control> end = join_rendezvous(options, at_once);
      Control& control = *end;
      joined = true;
      while (control.failure() == nullptr) std::this_thread::sleep_for(milliseconds(1));
      heard = control.wait_for_report();
    });
    std::thread strangers([&, addresses = resolve(place->endpoint())] {
      std::string why;
      while (!ended) connect_to(addresses.front(), steady_clock::now() + at_once, why);
    });
    {
      const std::unique_ptr<Control> end = join_rendezvous(place->join_options(0), at_once);
      Control& control = *end;
      while (!joined) std::this_thread::sleep_for(milliseconds(1));
      control.abort("enough", nullptr);
      control.say_reported();
    }
    place.reset();
    ended = true;
    strangers.join();
    other.join();
    CHECK(heard);
  }
}

// The rank announces something just before, which keeps its thread busy when it is ended.
TEST_CASE("what_a_rank_says_last_reaches_the_others") {
  for (int round = 0; round < 50; ++round) {
    const Meeting place({.ranks = 2});
    bool heard = false;
    std::thread other([&] {
      const std::unique_ptr<Control> end = join_rendezvous(place.join_options(1), at_once);
      Control& control = *end;
      control.open("control", std::nullopt, "");
      heard = control.wait_for_report();
    });
    {
      const std::unique_ptr<Control> joined = join_rendezvous(place.join_options(0), at_once);
      Control& control = *joined;
      const std::size_t opened = control.open("control", std::nullopt, "").channel;
      for (int number = 0; number < 20; ++number) control.announce(opened, signature_of_creation("control"));
      control.say_reported();
    }
    other.join();
    REQUIRE(heard);
  }
}

TEST_CASE("leaving_waits_for_all_and_is_no_crash") {
  const Meeting place({.ranks = 3});
  std::atomic<int> ended = 0;
  const auto texts = place.run([&](Control& control) {
    control.open("control", std::nullopt, "");
    if (control.rank() == 1) std::this_thread::sleep_for(milliseconds(50));
    ++ended;
    control.leave();
    CHECK(ended == 3);
    CHECK(control.failure() == nullptr);
  });
  for (const std::string& text : texts) CHECK(text == "");
}

// Its process answers, so it is not taken for one that was stopped.
TEST_CASE("a_rank_that_works_on_alone_is_waited_for_longer_than_the_deadline") {
  const Meeting place({.ranks = 2, .timeout = milliseconds(300)});
  const auto texts = place.run([](Control& control) {
    control.open("control", std::nullopt, "");
    if (control.rank() == 1) std::this_thread::sleep_for(milliseconds(1000));
    control.leave();
    CHECK(control.failure() == nullptr);
  });
  for (const std::string& text : texts) CHECK(text == "");
}

TEST_CASE("rank_0_raises_its_limit_of_open_files_for_its_ranks") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit low = before;
  low.rlim_cur = std::min<rlim_t>(256, before.rlim_max);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  const Meeting place({.ranks = 300});
  rlimit now{};
  ::getrlimit(RLIMIT_NOFILE, &now);
  ::setrlimit(RLIMIT_NOFILE, &before);
  CHECK(now.rlim_cur == std::min<rlim_t>(300 + 1024, before.rlim_max));
}

// It takes minutes to see what the system then does, so it is asked what it would do.
TEST_CASE("a_network_may_be_silent_for_the_jobs_timeout_and_for_half_a_minute_at_least") {
  Address address = resolve({.host = "127.0.0.1", .port = 0}).front();
  const Socket listener = listen_at(address);
  for (const auto& [timeout, seconds] : {std::pair(300, 30), std::pair(90'000, 90), std::pair(1'000'000'000, 32'000)}) {
    std::string why;
    Connection connection(connect_to(address, steady_clock::now() + at_once, why), Bytes(16));
    connection.admit(Bytes(16), milliseconds(timeout));
    const auto option = [&](int name) {
      int value = 0;
      socklen_t size = sizeof value;
      REQUIRE(::getsockopt(connection.descriptor(), IPPROTO_TCP, name, &value, &size) == 0);
      return value;
    };
    CHECK(option(TCP_USER_TIMEOUT) == 1000 * seconds);
    CHECK(option(TCP_KEEPIDLE) + option(TCP_KEEPCNT) * option(TCP_KEEPINTVL) == seconds);
  }
}

namespace {

constexpr milliseconds stopped_timeout{1500};

// Meets the others, and is stopped; with a descriptor once a byte has come from there.
[[noreturn]] void join_and_stop(const JoinOptions& options, std::optional<int> told = std::nullopt) {
  const std::unique_ptr<Control> joined = join_rendezvous(options, at_once);
  joined->open("control", std::nullopt, "");
  char byte = 0;
  if (told && ::read(*told, &byte, 1) != 1) ::_exit(1);
  ::raise(SIGSTOP);
  ::_exit(1);
}

// Returns what leaving comes to.
std::string leave_after_meeting(Control& control) {
  control.open("control", std::nullopt, "");
  control.leave();
  return control.failure() == nullptr ? "all have left" : control.failure()->cause;
}

// Whatever is thrown, the child does not stay.
struct Ended {
  pid_t child;
  ~Ended() {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
};

}  // namespace

TEST_CASE("a_rank_that_was_stopped_before_it_left_is_named" * doctest::skip(!forked_ranks_may_thread)) {
  const Meeting place({.ranks = 3, .timeout = stopped_timeout});
  const pid_t child = ::fork();
  if (child == 0) join_and_stop(place.join_options(0));
  const Ended ended{child};
  std::array<std::string, 3> causes;
  place.run([&](Control& control) { causes[static_cast<std::size_t>(control.rank())] = leave_after_meeting(control); },
            1);
  for (const int rank : {1, 2}) {
    CHECK(causes[static_cast<std::size_t>(rank)] ==
          "ranks 1, 2 waited up to 1.5 s for rank 0, which has not left the job and does nothing: was its process "
          "stopped?");
  }
}

TEST_CASE("a_rendezvous_that_was_stopped_while_ranks_leave_is_named" * doctest::skip(!forked_ranks_may_thread)) {
  std::array<int, 2> ends{}, met{};
  REQUIRE(::pipe(ends.data()) == 0);
  REQUIRE(::pipe(met.data()) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const Meeting place({.ranks = 2, .timeout = stopped_timeout});
    const std::uint16_t port = place.endpoint().port;
    if (::write(ends[1], &port, sizeof(port)) != sizeof(port)) ::_exit(1);
    join_and_stop(place.join_options(0), met[0]);  // the server as well, which has to have answered rank 1 before
  }
  const Ended ended{child};
  std::uint16_t port = 0;
  REQUIRE(::read(ends[0], &port, sizeof(port)) == sizeof(port));
  const JoinOptions options{.endpoint = {"127.0.0.1", port}, .token = MeetingOptions().token, .rank = 1, .ranks = 2};
  const std::unique_ptr<Control> control = join_rendezvous(options, stopped_timeout);
  control->open("control", std::nullopt, "");
  REQUIRE(::write(met[1], "", 1) == 1);
  control->leave();
  const std::string cause = control->failure() == nullptr ? "all have left" : control->failure()->cause;
  for (const int descriptor : {ends[0], ends[1], met[0], met[1]}) ::close(descriptor);
  CHECK(has(cause, "rank 1 waited up to 1.5 s at the end of the job for rank 0's rendezvous at 127.0.0.1:"));
}

TEST_CASE("blobs_have_a_limit_that_is_told_before_anything_is_sent") {
  const Meeting place({.ranks = 2});
  const auto texts = place.run([](Control& control) {
    control.open("control", std::nullopt, "");
    const std::string largest(Control::most_blob, 'x');
    if (control.exchange(1, meeting, largest).back() != largest) throw std::runtime_error("the largest blob");
    const std::string text = tests::error_text<UsageError>([&] { control.exchange(1, meeting, largest + "x"); });
    if (!has(text, "65537 bytes")) throw std::runtime_error(text);
    const std::string label(Control::most_code, 'a');
    const Signature long_one{.kind = CollectiveKind::barrier, .label = label, .sequence = 2};
    const std::string told = tests::error_text<UsageError>([&] { control.announce(1, long_one); });
    if (!has(told, "bytes to describe; one call takes up to 1048576"))
      throw std::runtime_error(told.substr(told.size() - 90));
  });
  for (const std::string& text : texts) CHECK(text == "");
}

TEST_CASE("a_cause_that_is_longer_than_any_message_loses_its_end_and_not_its_beginning") {
  const Meeting place({.ranks = 3});
  const auto texts = place.run([](Control& control) {
    control.open("control", std::nullopt, "");
    if (control.rank() == 1) throw DataError("train.bin: empty" + std::string(std::size_t{3} << 20, '!'));
    control.exchange(1, meeting, "");
  });
  for (const std::size_t rank : {0, 2})
    CHECK(has(texts[rank].substr(0, 200), "rank 1 failed first: train.bin: empty!"));
}

TEST_CASE("a_rank_that_sends_nonsense_is_named_and_ends_the_job") {
  const Meeting place({.ranks = 2});
  std::thread nonsense([&] {
    Connection connection = join(place.join_options(1));
    connection.send(FrameKind::announce, "?");
    connection.flush();
    wait_for(connection.descriptor(), POLLIN, steady_clock::now() + at_once);
  });
  const std::unique_ptr<Control> joined = join_rendezvous(place.join_options(0), at_once);
  Control& control = *joined;
  const std::string text = tests::error_text<AbortedError>([&] { control.open("control", std::nullopt, ""); });
  nonsense.join();
  CHECK(has(text, "rank 1 sent nonsense"));
}
