// A control group of an attempt's own (cgroup v2): kills all that is in it at once, even what multiplies
// faster than one can look.
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/fd.h"

namespace lockstep::launcher {

class JobCgroup {
 public:
  /// Makes one below this process's own group; null where the kernel or the user's rights do not allow it.
  static std::unique_ptr<JobCgroup> make();
  JobCgroup(const JobCgroup&) = delete;
  JobCgroup& operator=(const JobCgroup&) = delete;
  ~JobCgroup() { end(); }

  int fd() const { return directory_.get(); }  ///< for clone3
  void kill() const;
  /// Removes it, and kills what is still in it; waits a second at most.
  void end() const;

 private:
  JobCgroup(std::string path, UniqueFd directory)
      : path_(std::move(path)), directory_(std::move(directory)) {}
  std::string path_;
  UniqueFd directory_;
};

}  // namespace lockstep::launcher
