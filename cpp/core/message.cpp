#include "message.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>

namespace polymux {

namespace {

constexpr size_t kMaxFds = 8;
constexpr size_t kMaxCarriedBytes = 64 << 20;

std::string escape(const std::string& value) {
  std::string out;
  out.reserve(value.size());
  for (const char c : value) {
    if (c == '%') {
      out += "%25";
    } else if (c == '\n') {
      out += "%0A";
    } else if (c == '\r') {
      out += "%0D";
    } else {
      out += c;
    }
  }
  return out;
}

std::string unescape(const std::string& value) {
  std::string out;
  out.reserve(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    uint8_t byte = 0;
    if (value[i] == '%' && i + 2 < value.size() &&
        std::from_chars(&value[i + 1], &value[i + 3], byte, 16).ptr == &value[i + 3]) {
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += value[i];
    }
  }
  return out;
}

int carry(const std::string& text) {
  const int fd = memfd_create("polymux-message", MFD_CLOEXEC);
  if (fd < 0) throw Failure(POLYMUX_SYSTEM_ERROR, std::string("memfd_create: ") + std::strerror(errno));
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n <= 0) {
      close(fd);
      throw Failure(POLYMUX_SYSTEM_ERROR, std::string("cannot write a message: ") + std::strerror(errno));
    }
    done += static_cast<size_t>(n);
  }
  return fd;
}

std::string carried(int fd, const std::string& length) {
  size_t nbytes = 0;
  const auto [end, error] = std::from_chars(length.data(), length.data() + length.size(), nbytes);
  if (error != std::errc() || end != length.data() + length.size() || nbytes > kMaxCarriedBytes) {
    throw Failure(POLYMUX_PROTOCOL_MISMATCH, "a message of \"" + length + "\" bytes is announced");
  }
  std::string text(nbytes, '\0');
  size_t done = 0;
  while (done < nbytes) {
    const ssize_t n = pread(fd, text.data() + done, nbytes - done, static_cast<off_t>(done));
    if (n <= 0) throw Failure(POLYMUX_PROTOCOL_MISMATCH, "a message is shorter than announced");
    done += static_cast<size_t>(n);
  }
  return text;
}

}  // namespace

std::string Message::text(const std::string& key) const {
  const auto found = fields.find(key);
  return found == fields.end() ? std::string() : found->second;
}

uint64_t Message::number(const std::string& key) const {
  uint64_t value = 0;
  const std::string digits = text(key);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    throw Failure(POLYMUX_PROTOCOL_MISMATCH, "the server's reply has no number \"" + key + "\"");
  }
  return value;
}

void close_all(const std::vector<int>& fds) {
  for (const int fd : fds) close(fd);
}

std::vector<std::string> split_list(const std::string& list) {
  std::vector<std::string> out;
  size_t at = 0;
  while (at < list.size()) {
    const size_t comma = std::min(list.find(',', at), list.size());
    out.push_back(list.substr(at, comma - at));
    at = comma + 1;
  }
  return out;
}

std::string encode_message(const std::string& verb, const Fields& fields) {
  std::string text = verb;
  for (const auto& [key, value] : fields) {
    text += '\n';
    text += key;
    text += ' ';
    text += escape(value);
  }
  return text;
}

Message decode_message(const std::string& text) {
  Message message;
  size_t at = text.find('\n');
  message.verb = text.substr(0, at);
  if (message.verb.empty()) throw Failure(POLYMUX_PROTOCOL_MISMATCH, "empty message");
  while (at != std::string::npos) {
    const size_t start = at + 1;
    at = text.find('\n', start);
    const std::string line = text.substr(start, at == std::string::npos ? at : at - start);
    const size_t space = line.find(' ');
    if (space == std::string::npos) throw Failure(POLYMUX_PROTOCOL_MISMATCH, "line without a value: " + line);
    message.fields[line.substr(0, space)] = unescape(line.substr(space + 1));
  }
  return message;
}

void send_message(int socket, const std::string& text, const std::vector<int>& fds) {
  std::string shown = text;
  std::vector<int> all = fds;
  int carrier = -1;
  if (text.size() > kInlineBytes) {
    carrier = carry(text);
    shown = "carried " + std::to_string(text.size());
    all.insert(all.begin(), carrier);
  }
  iovec io{shown.data(), shown.size()};
  msghdr m{};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  if (!all.empty()) {
    m.msg_control = control;
    m.msg_controllen = CMSG_SPACE(all.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(all.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), all.data(), all.size() * sizeof(int));
  }
  ssize_t n;
  do {
    n = sendmsg(socket, &m, MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  if (carrier >= 0) close(carrier);
  if (n < 0) throw Failure(POLYMUX_SERVER_GONE, std::string("the server is gone: ") + std::strerror(errno));
}

Message receive_message(int socket) {
  std::string buffer(kInlineBytes + 4096, '\0');
  iovec io{buffer.data(), buffer.size()};
  msghdr m{};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  m.msg_control = control;
  m.msg_controllen = sizeof(control);
  ssize_t n;
  do {
    n = recvmsg(socket, &m, MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  std::vector<int> fds;
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); n >= 0 && c != nullptr; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    const size_t before = fds.size();
    fds.resize(before + count);
    std::memcpy(fds.data() + before, CMSG_DATA(c), count * sizeof(int));
  }
  if (n <= 0) {
    for (const int fd : fds) close(fd);
    throw Failure(POLYMUX_SERVER_GONE, "the server is gone");
  }
  buffer.resize(static_cast<size_t>(n));
  try {
    if (buffer.rfind("carried ", 0) == 0 && !fds.empty()) {
      buffer = carried(fds[0], buffer.substr(8));
      close(fds[0]);
      fds.erase(fds.begin());
    }
    Message message = decode_message(buffer);
    message.fds = std::move(fds);
    return message;
  } catch (...) {
    close_all(fds);
    throw;
  }
}

std::string default_socket_path() {
  if (const char* path = std::getenv("POLYMUX_SOCKET"); path != nullptr && *path != '\0') return path;
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime != '\0') {
    return std::string(runtime) + "/polymux/polymux.sock";
  }
  return "/tmp/polymux-" + std::to_string(getuid()) + "/polymux.sock";
}

}  // namespace polymux
