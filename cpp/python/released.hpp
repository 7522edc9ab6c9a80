// The interpreter's lock, let go of while C++ waits or computes.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace polymux {

// Python ends a thread that comes back while the interpreter ends by unwinding its stack. Destructors on the way, and
// whoever called, do not let that pass, and the process would abort. So such a thread sleeps until the process is gone,
// as newer Pythons have it themselves.
inline void take_lock_back(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (abi::__forced_unwind&) {
    for (;;) pause();
  }
}

class ReleasedLock {
 public:
  ReleasedLock() : state_(PyEval_SaveThread()) {}
  ~ReleasedLock() { take_lock_back(state_); }
  ReleasedLock(const ReleasedLock&) = delete;
  ReleasedLock& operator=(const ReleasedLock&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace polymux
