#include "launcher/process/program.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class ProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = (fs::temp_directory_path() / "program_test_XXXXXX").string();
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
    for (const char* name : {"tool", "python3", "script.py"}) write(name, fs::perms::owner_all);
    write("data", fs::perms::owner_read);
  }
  void TearDown() override { fs::remove_all(directory_); }

  void write(const char* name, fs::perms permissions) {
    std::ofstream(directory_ / name) << "x";
    fs::permissions(directory_ / name, permissions);
  }
  std::string at(const char* name) const { return (directory_ / name).string(); }
  Program resolve(const Words& command, TargetKind kind = {}) const {
    return resolve_program(command, kind, "python3", "/nonexistent:" + directory_.string());
  }
  std::string error_of(const Words& command) const {
    try {
      resolve(command);
    } catch (const FileError& error) {
      return error.what();
    }
    return "no error";
  }
  fs::path directory_;
};

TEST_F(ProgramTest, LooksInThePath) {
  const Program program = resolve({"tool", "-x"});
  EXPECT_EQ(program.path, at("tool"));
  EXPECT_EQ(program.argv, (Words{"tool", "-x"}));
  EXPECT_EQ(resolve({at("tool")}).path, at("tool"));
}

TEST_F(ProgramTest, GivesScriptsAndModulesToPython) {
  const Program script = resolve({at("script.py"), "1"});
  EXPECT_EQ(script.path, at("python3"));
  EXPECT_EQ(script.argv, (Words{"python3", "-u", at("script.py"), "1"}));
  EXPECT_EQ(resolve({"package.train", "1"}, {.module = true}).argv,
            (Words{"python3", "-u", "-m", "package.train", "1"}));
  EXPECT_EQ(resolve({at("script.py")}, {.no_python = true}).path, at("script.py"));
}

TEST_F(ProgramTest, KnowsWhereTheProgramsArgumentsBegin) {
  EXPECT_EQ(resolve({"tool", "-x"}).first_argument, 1u);
  EXPECT_EQ(resolve({at("script.py"), "1"}).first_argument, 3u);
  EXPECT_EQ(resolve({"package.train", "1"}, {.module = true}).first_argument, 4u);
  const Program run_path = resolve({at("script.py"), "1"}, {.no_python = true, .run_path = true});
  EXPECT_EQ(run_path.path, at("python3"));
  EXPECT_EQ(run_path.argv[run_path.first_argument], "1");
}

TEST_F(ProgramTest, SaysWhatIsWrong) {
  EXPECT_EQ(error_of({"absent"}), "cannot find the program absent in PATH; check its name, or give its path");
  EXPECT_EQ(error_of({at("absent")}),
            "cannot find the program " + at("absent") + ": No such file or directory");
  EXPECT_EQ(error_of({at("absent.py")}),
            "cannot find the Python script " + at("absent.py") + ": No such file or directory");
  EXPECT_EQ(error_of({directory_.string()}),
            directory_.string() + " is a directory; name the program to run");
  EXPECT_EQ(error_of({at("data")}),
            at("data") + " is not executable; try chmod +x, or python3 if it is a Python script");
}

}  // namespace
}  // namespace lockstep::launcher
