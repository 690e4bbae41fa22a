# Made by packaging/dist.py from a release's checksums: belongs to Formula/ of the tap.
class Kivu < Formula
  desc "Runs Hugging Face transformer models on the CPU"
  homepage "@REPOSITORY@"
  version "@VERSION@"
  license "@LICENSE@"

  depends_on :linux

  on_intel do
    url "@BASE@/kivu-@VERSION@-linux-x86_64.tar.gz"
    sha256 "@SHA256_x86_64@"
  end
  on_arm do
    url "@BASE@/kivu-@VERSION@-linux-aarch64.tar.gz"
    sha256 "@SHA256_aarch64@"
  end

  def install
    libexec.install "kivu", "lib"
    bin.install_symlink libexec/"kivu"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/kivu --version")
  end
end
