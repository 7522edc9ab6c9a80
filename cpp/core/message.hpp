// The control protocol: short texts over a Unix SOCK_SEQPACKET, with descriptors beside them.
//
// First line: the operation, or "ok" / "error". Then lines "key value"; in values %, LF and CR are percent-encoded.
// A message of more than kInlineBytes travels as a memfd ("carried N" and one descriptor).
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "polymux.h"

namespace polymux {

// A failure of a call, as the C interface reports it.
struct Failure : std::runtime_error {
  Failure(polymux_status status_, const std::string& message) : std::runtime_error(message), status(status_) {}
  polymux_status status;
};

using Fields = std::map<std::string, std::string>;

struct Message {
  std::string verb;
  Fields fields;
  std::vector<int> fds;  // owned by whoever holds the message

  std::string text(const std::string& key) const;  // "" when the field is not there
  uint64_t number(const std::string& key) const;   // throws Failure(PROTOCOL_MISMATCH) when it is none
};

void close_all(const std::vector<int>& fds);
std::vector<std::string> split_list(const std::string& list);  // at its commas

inline constexpr size_t kInlineBytes = 60'000;

std::string encode_message(const std::string& verb, const Fields& fields);
// Throws Failure(PROTOCOL_MISMATCH).
Message decode_message(const std::string& text);

// Throw Failure(SERVER_GONE).
void send_message(int socket, const std::string& text, const std::vector<int>& fds);
Message receive_message(int socket);

// $POLYMUX_SOCKET, else polymux/polymux.sock under $XDG_RUNTIME_DIR, else in /tmp/polymux-<uid>.
std::string default_socket_path();

}  // namespace polymux
