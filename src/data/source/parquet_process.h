// A Python with pyarrow that reads Parquet files for this process: requests and answers are lines on a socket. So any
// build reads them wherever pyarrow is installed, and what breaks the reader of a stranger's file breaks a process that
// is made anew.
//
//   {"path": "a.parquet"}                                  -> i{"columns": [["text", "text", "string"]], "groups": ...}
//   {"path": "a.parquet", "column": "text", "group": 0}    -> s5   a row   v null   .
//
// s is a text of so many bytes, which follow; v another value, as JSON. An answer may end with an error instead: e, and
// what is wrong with the file; n, with the next value; d, with some rows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "base/json.h"

namespace stepc {

// For messages: of what a process says, which may have names out of a file in it.
std::string one_line(std::string_view said);

class ParquetProcess {
 public:
  // `python`: a path, or a name to look for in PATH. Where that is none, or has no pyarrow, why_not() says so.
  explicit ParquetProcess(const std::string& python);
  ~ParquetProcess();
  ParquetProcess(const ParquetProcess&) = delete;
  ParquetProcess& operator=(const ParquetProcess&) = delete;

  [[nodiscard]] const std::string& why_not() const { return why_not_; }

  // Columns and row groups of a file. Every failure is a UserError that begins with `name`.
  Json layout(const std::string& name);
  // The values of a column in a row group, whose rows count from `row` on. What `use` throws passes through; the
  // process is of no more use then.
  void for_each_value(const std::string& name, const std::string& column, int group, uint64_t row,
                      const std::function<void(uint64_t row, const Json& value)>& use);
  // Whether it has answered all that it was asked.
  [[nodiscard]] bool is_idle() const { return is_idle_; }

 private:
  void ask(const Json& request);
  Json read_text(std::string_view size, const std::string& name);
  // The next line without its end, or the next bytes; they live until the next call. Empty at the end of what it says.
  std::string_view read_line();
  std::string_view read_bytes(size_t count);
  bool read_more();  // into the buffer
  // The same, of an answer about the file: an error in it is thrown.
  std::string_view answer(const std::string& name);

  pid_t pid_ = 0;
  int socket_ = -1;
  std::string why_not_;
  std::string buffer_;  // what was read; what stands before given_ was given
  size_t given_ = 0;
  bool is_idle_ = true;
};

// The processes of a run: each is one thread's at a time, and waits here for the next. From any thread.
class ParquetReaders {
 public:
  // The first of these that has pyarrow is taken.
  explicit ParquetReaders(std::vector<std::string> pythons) : pythons_(std::move(pythons)) {}

  // What `work` makes with a process. `name`: of the file, for a UserError where there is no such Python.
  template <class Work>
  auto with(const std::string& name, const Work& work) {
    const std::unique_ptr<ParquetProcess, GiveBack> process(take(name).release(), GiveBack{this});
    return work(*process);
  }

 private:
  struct GiveBack {
    ParquetReaders* readers;
    void operator()(ParquetProcess* process) const { readers->give_back(std::unique_ptr<ParquetProcess>(process)); }
  };
  std::unique_ptr<ParquetProcess> take(const std::string& name);
  void give_back(std::unique_ptr<ParquetProcess> process);

  const std::vector<std::string> pythons_;
  std::mutex mutex_;  // guards what follows
  std::vector<std::unique_ptr<ParquetProcess>> idle_;
  std::string chosen_;  // of pythons_; empty: not known yet
};

}  // namespace stepc
