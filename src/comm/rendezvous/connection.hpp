// A socket with frames on both sides: what came and is not read yet, what is to be sent and could not be yet.
// Thread safety: one thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "comm/rendezvous/frames.hpp"
#include "comm/rendezvous/socket.hpp"

namespace tessera::comm {

class Connection {
 public:
  Connection(Socket socket, Bytes most_payload) : socket_(std::move(socket)), reader_(most_payload) {}

  int descriptor() const { return socket_.descriptor(); }
  void allow(Bytes most_payload) { reader_.allow(most_payload); }

  // Takes some of what is there; false when the other side has gone. Frames that came before that are still given.
  bool receive();
  std::optional<Frame> next() { return reader_.next(); }  // throws DataError

  void send(FrameKind kind, std::string_view payload) { append_frame(out_, kind, payload); }
  // Whole frames, which are taken.
  void send_frames(std::string& frames) {
    out_.append(frames);
    frames.clear();
  }
  bool flush();  // as much as goes now; false when the other side has gone
  bool has_to_send() const { return sent_ < out_.size(); }

 private:
  Socket socket_;
  FrameReader reader_;
  std::string out_;
  std::size_t sent_ = 0;
};

}  // namespace tessera::comm
